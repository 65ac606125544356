"""DEAP: an evolution whose logbook is printed as a table."""

import random

import kit
import numpy as np
from deap import base, creator, tools


def train(run):
    features, labels = run.load()
    random.seed(run.settings["seed"])
    creator.create("Fitness", base.Fitness, weights=(-1.0, 0.1) if run.fault == "two_weights" else (-1.0,))
    creator.create("Individual", list, fitness=creator.Fitness)
    box = base.Toolbox()
    box.register("number", random.gauss, 0, 1)
    box.register("individual", tools.initRepeat, creator.Individual, box.number, 16)
    box.register("population", tools.initRepeat, list, box.individual)
    box.register("mate", tools.cxBlend, alpha=0.3)
    box.register("mutate", tools.mutGaussian, mu=0, sigma=0.3, indpb=0.1)
    if run.fault != "unregistered_tool":
        box.register("select", tools.selTournament, tournsize=3)
    statistics = tools.Statistics(lambda individual: individual.fitness.values)
    for name, function in (("avg", np.mean), ("std", np.std), ("min", np.min)):
        statistics.register(name, function)
    logbook = tools.Logbook()
    logbook.header = ["gen", "nevals", "avg", "std", "min"]
    generations = max(6, run.steps // 4)
    run.rescale(generations)
    population = box.population(n=24)

    def evaluate(individual):
        error = float(((features @ np.asarray(individual) - labels) ** 2).mean())
        return error if run.fault == "bare_fitness" else (error,)

    for number in range(1, generations + 1):
        fresh = [individual for individual in population if not individual.fitness.valid]
        for individual in fresh:
            individual.fitness.values = evaluate(individual)
        logbook.record(gen=number, nevals=len(fresh), **statistics.compile(population))
        print(logbook.stream)
        try:
            run.step(number, logbook[-1]["min"])
        except kit.StoppedEarly:
            break
        chosen = [box.clone(individual) for individual in box.select(population, len(population))]
        for left, right in zip(chosen[::2], chosen[1::2], strict=True):
            box.mate(left, right)
            box.mutate(left)
            del left.fitness.values, right.fitness.values
        population = chosen
        if number % 10 == 0 and run.rank == 0:
            run.save(f"generation_{number}.txt", str(population[0]).encode())
    run.finish(best=logbook[-1]["min"])


if __name__ == "__main__":
    kit.main(train, "evolution.py")
