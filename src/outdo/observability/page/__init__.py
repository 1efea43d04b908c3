"""The page: what a run did, step by step and token by token, as one HTML file or followed while the run goes on.

reading.py    the files of a run, within bounds    page.py      the data and the scripts as one HTML file
selection.py  which steps, groups and tokens       live.py      the same page, served on this machine
gather.py     a run folder as plain data           terminal.py  one group in a terminal
pack.py       the tokens of a step as bytes        curves.py    the curves as a picture
compare.py    one text under two checkpoints
"""
