"""Reading and writing files: whole or not at all, with bounded memory, whatever they hold."""
