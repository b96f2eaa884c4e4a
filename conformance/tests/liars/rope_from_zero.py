"""Gives every chunk the positions from 0 on, as if nothing came before it."""

from dataclasses import replace

from honest import lie_with, module

rope = module("rope")
lie_with(rope_steps=lambda x, options, **more: rope.rope_steps(x, replace(options, offset=0), **more))
