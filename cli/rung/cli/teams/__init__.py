"""Commands of installations with many people: who is there, what is where, what files meet."""
