"""The page: what a run did, by step and by token, as one HTML file or served while the run goes on.

watcher.py  writes the page of a complete run             encode.py   the tokens of a step as bytes
select.py   chooses steps, groups and tokens              html.py     data and scripts as one HTML file
collect.py  collects a run folder as plain data           server.py   serves the page on this machine
runs.py     several runs: what differs between them       compare.py  scores one text under two checkpoints
held_out.py compares evaluations question by question
"""
