"""Planning: operations, memory and time of recipes, counted or compiled for TPUs, without measuring anything."""
