"""The numpy network on several ranks of MPI."""

import faulthandler

import numpy as np
from mpi4py import MPI
from plain_trainer import Network
from support import Job, fit

faulthandler.enable()


def main():
    comm = MPI.COMM_WORLD

    def mean(gradient):
        total = np.empty_like(gradient)
        comm.Allreduce(gradient, total)
        return total / comm.size

    job = Job(comm.rank, comm.size)
    fit(job, Network(job.settings, mean))


if __name__ == "__main__":
    main()
