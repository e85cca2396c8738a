# The functions are for arrow_input, which is compiled too.
COMPILED: bool
