"""Planning: operations, memory and time of recipes, counted without measuring anything."""
