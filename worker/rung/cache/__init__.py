"""A node's cache of data: filled once, verified, shared by trials, evicted least recently used.

    source            what the experiment file names, and what the script gets
    listing           the files of a source at one moment
    origin            where they come from: S3, or a folder (of a network file system)
    cache             the folder with all of it, its size limit, who uses what, what is evicted
    blob_store        files by the digest of their content, each once
    tree              one listing in the cache: its files, and whether they are all there
    fill              downloads what is missing, one process at a time
    partial_download  a large object of which some parts are there; a download resumes with it
    user_cache        the cache of a script that is run by hand

Processes of one node share a cache folder: agents, and scripts that are run by hand. They agree
by locks on files, which the kernel gives back when a process dies.
"""

from rung.cache.cache import Cache, Held
from rung.cache.errors import DataChanged, DataError, DataUnavailable, NoRoom
from rung.cache.listing import Entry, Listing
from rung.cache.origin import FolderOrigin, Origin, origin_of
from rung.cache.source import Source, sources_of, variable_of

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
