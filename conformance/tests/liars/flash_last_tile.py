"""In tiles: what is left over after the last whole one is dropped."""

from honest import lie_with, module

flash = module("flash")
tiles = flash.tiles
flash.tiles = lambda start, stop, size: (
    tile for tile in tiles(start, stop, size) if stop - start < size or tile.stop - tile.start == size
)
lie_with()
