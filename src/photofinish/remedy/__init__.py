"""A diagnosis' remedy, tried: what it really gives, beside what was predicted."""
