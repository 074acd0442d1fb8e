"""Numbers: the checks that arguments pass where they enter the library, and ragged rows of them."""
