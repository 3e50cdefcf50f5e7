"""Parts of the programs that check, describe and write data sets."""
