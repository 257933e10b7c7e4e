"""Introspection: what Rung reads in the code of scripts and of frameworks.

script_code      which modules and functions are the script's, and what its functions enclose
function_parts   the values to which a function, a method or a partial of a script refers
library_code     the names to which the functions of a library refer
seams            private interfaces of a framework, checked at import
"""
