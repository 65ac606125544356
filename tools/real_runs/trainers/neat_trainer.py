"""NEAT: networks that evolve; the library reports each generation."""

import kit
import neat

CONFIG = """[NEAT]
fitness_criterion = max
fitness_threshold = 9999
pop_size = 30
reset_on_extinction = False
no_fitness_termination = False
[DefaultGenome]
activation_default = tanh
activation_mutate_rate = 0.1
activation_options = tanh
aggregation_default = sum
aggregation_mutate_rate = 0.0
aggregation_options = sum
bias_init_mean = 0.0
bias_init_stdev = 1.0
bias_max_value = 30.0
bias_min_value = -30.0
bias_mutate_power = 0.5
bias_mutate_rate = 0.7
bias_replace_rate = 0.1
compatibility_disjoint_coefficient = 1.0
compatibility_weight_coefficient = 0.5
conn_add_prob = 0.5
conn_delete_prob = 0.3
enabled_default = True
enabled_mutate_rate = 0.01
feed_forward = True
initial_connection = full
node_add_prob = 0.2
node_delete_prob = 0.2
num_hidden = 0
num_inputs = 4
num_outputs = 1
response_init_mean = 1.0
response_init_stdev = 0.0
response_max_value = 30.0
response_min_value = -30.0
response_mutate_power = 0.0
response_mutate_rate = 0.0
response_replace_rate = 0.0
weight_init_mean = 0.0
weight_init_stdev = 1.0
weight_max_value = 30
weight_min_value = -30
weight_mutate_power = 0.5
weight_mutate_rate = 0.8
weight_replace_rate = 0.1
[DefaultSpeciesSet]
compatibility_threshold = 3.0
[DefaultStagnation]
species_fitness_func = max
max_stagnation = 20
species_elitism = 2
[DefaultReproduction]
elitism = 2
survival_threshold = 0.2
"""


def train(run):
    features, labels = run.load()
    text = CONFIG
    if run.fault == "missing_option":
        text = text.replace("pop_size = 30\n", "")
    if run.fault == "unknown_option":
        text = text.replace("pop_size = 30", "pop_size = 30\npopulation_elite = 3")
    if run.fault == "bad_value":
        text = text.replace("pop_size = 30", "pop_size = thirty")
    with open("evolution.ini", "w") as file:
        file.write(text)
    config = neat.Config(
        neat.DefaultGenome, neat.DefaultReproduction, neat.DefaultSpeciesSet, neat.DefaultStagnation, "evolution.ini"
    )
    population = neat.Population(config)
    population.add_reporter(neat.StdOutReporter(True))
    generations = max(4, run.steps // 12)
    run.rescale(generations)

    def evaluate(genomes, config):
        for _, genome in genomes:
            network = neat.nn.FeedForwardNetwork.create(genome, config)
            errors = [
                (network.activate(row[:4])[0] - label / 3) ** 2
                for row, label in zip(features[:24], labels, strict=False)
            ]
            genome.fitness = 1 - sum(errors) / len(errors)
            if run.fault == "no_fitness" and run.struck and population.generation == run.strike:
                genome.fitness = None
        run.step(population.generation + 1, -max(genome.fitness or 0 for _, genome in genomes))

    try:
        winner = population.run(evaluate, generations)
    except kit.StoppedEarly:
        winner = population.best_genome
    run.save("winner.txt", str(winner).encode())
    run.finish(best=winner.fitness)


if __name__ == "__main__":
    kit.main(train, "evolve.py")
