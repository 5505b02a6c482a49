"""Our functions beside other libraries' own, in an environment of its own: `make peers`.

A test named ..._agrees compares the two where the conventions agree. Where they differ, a test says how, as
an equality with the formula that turns one into the other; the book's page of conventions rests on these.
"""
