"""Two ranks, of which rank 1 ends without a word: rank 0's wait ends, and its error says for whom it waited."""

import os

import gdx

team = gdx.Team(heap_bytes=1 << 20)
arrived = team.array(1, "u8")
team.signal(arrived, 1, 1 - team.rank)
team.wait(arrived, "==", 1, 1 - team.rank)
if team.rank == 1:
    os._exit(0)
try:
    team.wait(arrived, "==", 2, rank=1)
except gdx.Error as error:
    print(f"{error.status.name} of rank {error.rank}, syndrome {error.syndrome}: {error}")
try:
    team.close()
except gdx.Error as error:
    print(f"{error.status.name} at the end: {error}")
