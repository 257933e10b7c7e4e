"""A node's cache of data: filled once, verified, shared by trials, evicted least recently used.

    source      what the experiment file names, and what the script gets
    listing     the files of a source at one moment
    origin      where they come from: S3, or a folder (of a network file system)
    cache       the folder with all of it, its size limit, who uses what
    tree        one listing in the cache: its files, and whether they are all there
    fill        brings what is missing, by one filler at a time
    partial     a large object on its way, which goes on where it broke off

Processes of one node share a cache folder: agents, and scripts that are run by hand. They agree
by locks on files, which the kernel gives back when a process dies.
"""

from rung.cache.cache import Cache, Held
from rung.cache.listing import Entry, Listing
from rung.cache.origin import FolderOrigin, Origin, origin_of
from rung.cache.source import Source, sources_of, variable_of
from rung.cache.trouble import DataChanged, DataError, DataUnavailable, NoRoom

__all__ = [
    "Cache",
    "DataChanged",
    "DataError",
    "DataUnavailable",
    "Entry",
    "FolderOrigin",
    "Held",
    "Listing",
    "NoRoom",
    "Origin",
    "Source",
    "origin_of",
    "sources_of",
    "variable_of",
]
