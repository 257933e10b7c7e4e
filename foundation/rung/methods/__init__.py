"""Search methods: what each is asked in the experiment file, what it draws, what it decides.

One module per method, and one line of `table.MODULES` for it. Pure. The configuration reads the
options, the searcher runs the methods, and trials ask which lengths they validate at on their way.
"""
