"""The page: what a run did, step by step and token by token, as one HTML file or followed while the run goes on.

gather.py   a run folder as plain data         page.py      the data and the scripts as one HTML file
pack.py     the tokens of a step as bytes      live.py      the same page, served on this machine
compare.py  one text under two checkpoints     terminal.py  one group in a terminal
"""
