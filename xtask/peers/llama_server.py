"""Serves a model by llama.cpp's HTTP server: `llama_server.py MODEL.gguf PORT KEY`."""

import signal
import sys

import xllamacpp

model, port, key = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path = model
params.model_alias = {"tiny-random"}
params.n_ctx = 2048
params.n_parallel = 1
params.warmup = False
params.use_jinja = True
# Measuring the machine's memory is of no use to a model of 144 KB.
params.fit_params = False
params.hostnames = ["127.0.0.1"]
params.port = int(port)
params.api_keys = [key]
params.cpuparams.n_threads = 1
params.cpuparams_batch.n_threads = 1

server = xllamacpp.Server(params)
print("listening on", server.listening_address, flush=True)
signal.pause()
