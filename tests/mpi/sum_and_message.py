"""A program of two ranks: sums of 16 bits and a message on one axis, begun in different orders."""

import numpy as np

from pscale.mesh.axis import Tag
from pscale.mesh.mpi import world_axis

axis = world_axis()
half, message = np.full(64, axis.rank + 1, np.float16), np.full(64, 7 * (1 - axis.rank), np.float16)
if axis.rank == 0:
    calls = axis.start_all_reduce(half), axis.start_send(message, 1, Tag.MESSAGE)
else:
    calls = axis.start_receive(message, 0, Tag.MESSAGE), axis.start_all_reduce(half)
for call in calls:
    call.wait()
everyone = axis.gather_objects((float(half[0]), float(message[0])))
if everyone:
    print(everyone)
