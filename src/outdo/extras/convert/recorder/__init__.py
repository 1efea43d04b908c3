"""What runs in the sandbox beside a script of TRL: libraries that record how they are called, and nothing else.

These modules are sent into the sandbox as text, where neither outdo nor any installed package is; they import the
standard library and each other.
"""
