"""Search methods: their options in the experiment file, what they draw, and what they decide.

One module per method, and one line of `table.MODULES` for it. Pure. The configuration reads the
options, the searcher runs the methods, and trials look up the lengths at which they validate.
"""
