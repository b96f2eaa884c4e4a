"""A campaign of random questions: every op, every port, held against the oracle and its bounds.

`draws` has the choices that all ops share, a module a group of ops says how a question of each is drawn, `kernels` how
one of sdpa that is aimed at vectors and tiles is, `broken` makes a good question bad, and `campaign` asks, and shrinks
what disagrees to a smallest case in a folder of its own.
"""
