"""Commands that change experiments: pause and end, extend, describe, move, delete."""
