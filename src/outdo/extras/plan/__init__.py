"""What a run costs on hardware that is not there: memory, seconds, money, and the best split of devices.

Formulas on published specifications, and a simulation of the loop. Nothing here loads torch or a model.
"""
