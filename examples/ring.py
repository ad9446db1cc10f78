"""A sum around a ring of ranks, in Python: gdx run --ranks 4 -- python3 ring.py"""

import gdx

with gdx.Team() as team:
    right = (team.rank + 1) % team.size
    total, arrived = team.array(1, "i8"), team.array(1, "u8")
    if team.rank > 0:
        team.wait(arrived, ">=", 1, rank=team.rank - 1)
    total += team.rank
    team.put_signal(total, total, arrived, 1, right)
    if team.rank == 0:
        team.wait(arrived, ">=", 1, rank=team.size - 1)
        print(f"ranks 0 to {team.size - 1} add up to {total[0]}")
    team.barrier()
