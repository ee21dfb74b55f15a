"""What a program's files say about its code: functions, names, libraries.

Needs no privileges and never runs the program.
"""
