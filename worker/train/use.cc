#include "worker/train/use.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "kernels/cuda/device.h"
#include "worker/train/command_line.h"
#include "worker/train/gpu/machine.h"
#include "worker/train/score/commands.h"
#include "worker/train/step/signals.h"

namespace nsa::train {
namespace {

CLI::Option* AddScore(CLI::App* app, UseFlags* flags) {
  return app
      ->add_option("--score", flags->score,
                   "CHECKPOINT TEXT: write the log-probability of every byte of a text")
      ->expected(2);
}

CLI::Option* AddEval(CLI::App* app, UseFlags* flags) {
  return app
      ->add_option("--eval", flags->eval,
                   "CHECKPOINT TEXT: print loss, perplexity, bits a byte, and the loss by the "
                   "number of tokens seen")
      ->expected(2);
}

CLI::Option* AddSample(CLI::App* app, UseFlags* flags) {
  SampleOptions* to = &flags->sampling;
  auto* sample = app->add_option("--sample", flags->sample,
                                 "CHECKPOINT: print text that a trained model writes");
  auto* prompt = app->add_option("--prompt", to->prompt, "text to continue")->needs(sample);
  app->add_option("--prompt-file", flags->prompt_file,
                  "file with the text to continue; - reads standard input")
      ->needs(sample)
      ->excludes(prompt);
  app->add_option("--bytes", to->bytes, "bytes to write; 200 without --max-tokens")->needs(sample);
  app->add_option("--max-tokens", to->tokens, "tokens to write")->needs(sample);
  app->add_option("--temperature", to->draw.temperature, "0 takes the likeliest; default 0.8")
      ->needs(sample);
  app->add_option("--top-k", to->draw.top_k, "draw from the k likeliest tokens only; 0: from all")
      ->needs(sample);
  app->add_option("--top-p", to->draw.top_p,
                  "draw from the likeliest tokens that together have this probability only")
      ->needs(sample);
  return sample;
}

CLI::Option* AddServe(CLI::App* app, UseFlags* flags) {
  auto* serve = app->add_option("--serve", flags->served,
                                "CHECKPOINT: answer OpenAI's completions API for programs of this "
                                "machine");
  app->add_option("--listen", flags->server.listen,
                  "127.0.0.1:PORT or localhost:PORT; default: 127.0.0.1:8000; port 0 takes a free "
                  "one")
      ->needs(serve);
  return serve;
}

CLI::Option* AddNeedle(CLI::App* app, UseFlags* flags) {
  NeedleOptions* to = &flags->needles;
  auto* needle = app->add_option("--needle", flags->needle,
                                 "CHECKPOINT: print how often the model finds a pass key that is "
                                 "hidden in its context");
  app->add_option("--lengths", to->lengths,
                  "tokens of the context, e.g. 512,1024; default: the powers of two from 256 to "
                  "the job's train.seq_len")
      ->delimiter(',')
      ->needs(needle);
  app->add_option("--depths", to->depths, "places of the key; default 5")->needs(needle);
  app->add_option("--trials", to->trials, "documents for each length and place; default 10")
      ->needs(needle);
  return needle;
}

CLI::Option* AddWriteNeedles(CLI::App* app, UseFlags* flags) {
  NeedleDocuments* to = &flags->documents;
  auto* write = app->add_option("--write-needles", flags->write_needles,
                                "file: write documents with pass keys as JSON lines, and end");
  app->add_option("--documents", to->documents, "how many; default 10000")->needs(write);
  app->add_option("--document-bytes", to->bytes, "bytes of each")->needs(write);
  return write;
}

// Flags that several commands have; RunUse() gives them to the one that runs.
void AddShared(CLI::App* app, UseFlags* flags) {
  app->add_option("-o,--output", flags->output,
                  "file for --score (default: scores.jsonl) or, as CSV, for --needle");
  app->add_option("--json", flags->json,
                  "file for the numbers of --eval or --needle as JSON, instead of text on standard "
                  "output");
  app->add_option("--seed", flags->seed,
                  "of --sample, --needle or --write-needles: the same seed gives the same result");
  app->add_option("--filler", flags->documents.filler,
                  "text file whose words stand around the key, for --needle or --write-needles; "
                  "default: the sentences of the paper");
  app->add_option("--context", flags->sampling.context,
                  "tokens that the model sees at most, with --sample or --serve; default: the "
                  "job's train.seq_len")
      ->check(CLI::Range(0, 1'048'576));
  app->add_option("--device", flags->device,
                  "cpu or cuda, where --sample, --score, --eval, --needle or --serve computes; "
                  "default: cpu, also for a model of a GPU");
}

bool UsesAModel(const UseFlags& flags) {
  return !flags.score.empty() || !flags.eval.empty() || !flags.sample.empty() ||
         !flags.needle.empty() || !flags.served.empty();
}

Backend BackendOf(const UseFlags& flags) {
  return flags.device == "cuda" ? Backend::kCuda : Backend::kCpu;
}

absl::Status CheckDevice(const std::string& device) {
  if (device != "cpu" && device != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device: '", device, "' (must be cpu or cuda); choose one"));
  }
  if (device == "cpu" || cuda::BuiltWithCuda()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--device: cuda (this program was built without CUDA); use nsa-worker-cuda or --device cpu");
}

// A flag that the command does not know is an error, as CLI11's needs() cannot say "one of these".
absl::Status CheckShared(const UseFlags& flags) {
  const bool needles = !flags.needle.empty() || !flags.write_needles.empty();
  const auto wrong = [](const std::string& flag, const char* with) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " (only with ", with, "); leave it out"));
  };
  if (flags.sampling.context != 0 && flags.sample.empty() && flags.served.empty()) {
    return wrong(absl::StrCat("--context: ", flags.sampling.context), "--sample or --serve");
  }
  if (!flags.output.empty() && flags.score.empty() && flags.needle.empty()) {
    return wrong("--output: " + flags.output, "--score or --needle");
  }
  if (!flags.json.empty() && flags.eval.empty() && flags.needle.empty()) {
    return wrong("--json: " + flags.json, "--eval or --needle");
  }
  if (!flags.documents.filler.empty() && !needles) {
    return wrong("--filler: " + flags.documents.filler, "--needle or --write-needles");
  }
  if (flags.seed.has_value() && flags.sample.empty() && !needles) {
    return wrong(absl::StrCat("--seed: ", *flags.seed), "--sample, --needle or --write-needles");
  }
  if (!flags.device.has_value()) return absl::OkStatus();
  if (UsesAModel(flags)) return CheckDevice(*flags.device);
  return wrong("--device: " + *flags.device, "--sample, --score, --eval, --needle or --serve");
}

absl::Status RunUse(const UseFlags& flags) {
  const Backend backend = BackendOf(flags);
  if (!flags.score.empty()) {
    const std::string output = flags.output.empty() ? "scores.jsonl" : flags.output;
    return ScoreCommand(flags.score[0], backend, flags.score[1], output);
  }
  if (!flags.eval.empty()) {
    return EvaluateCommand(flags.eval[0], backend, flags.eval[1], flags.json);
  }
  if (!flags.needle.empty()) {
    NeedleOptions options = flags.needles;
    options.seed = flags.seed.value_or(options.seed);
    return NeedleCommand(flags.needle, backend, flags.documents.filler, options,
                         {.csv = flags.output, .json = flags.json});
  }
  if (!flags.write_needles.empty()) {
    NeedleDocuments options = flags.documents;
    options.seed = flags.seed.value_or(options.seed);
    return WriteNeedles(flags.write_needles, options);
  }
  SampleOptions options = flags.sampling;
  options.seed = flags.seed.value_or(options.seed);
  return SampleCommand(flags.sample, backend, flags.prompt_file, options);
}

void AnnounceServer(const serve::CompletionServer& server, const TrainedModel& trained) {
  const serve::Engine& engine = server.engine();
  absl::PrintF(
      "serving %s, step %d, at %s/v1 (context %d tokens, caches %.1f MiB, %s); Ctrl-C ends it\n",
      server.model(), trained.state().step(), server.url(), engine.context(),
      static_cast<double>(engine.bytes()) / (1 << 20), trained.device());
  std::fflush(stdout);
}

// Runs --serve until SIGTERM or SIGINT. They end it at once while the model is loaded, and within a
// second later: requests are answered, and what is computed is left.
int Serve(const UseFlags& flags, int threads) {
  std::atomic<bool> serving = false, asked = false;
  const SignalWatch watch([&](int) {
    if (!serving) std::_Exit(0);
    asked = true;
    asked.notify_all();
  });
  const RealClock clock;
  SetThreads(threads, 1);
  const auto trained = TrainedModel::Load(flags.served, BackendOf(flags));
  if (!trained.ok()) return Fail(trained.status());
  serve::ServerOptions options = flags.server;
  options.context = flags.sampling.context;
  options.threads = threads;
  const auto server = serve::CompletionServer::Start(trained->get(), &clock, options);
  if (absl::IsInvalidArgument(server.status())) return Refuse(server.status());
  if (!server.ok()) return Fail(server.status());
  serving = true;
  AnnounceServer(**server, **trained);
  asked.wait(false);
  (*server)->Drain(absl::Milliseconds(700));
  spdlog::shutdown();
  std::_Exit(0);  // the model's thread may be in the middle of a long step
}

}  // namespace

void AddUse(CLI::App* app, UseFlags* flags) {
  const std::vector<CLI::Option*> commands = {AddSample(app, flags), AddScore(app, flags),
                                              AddEval(app, flags),   AddNeedle(app, flags),
                                              AddServe(app, flags),  AddWriteNeedles(app, flags)};
  for (CLI::Option* one : commands) {
    for (CLI::Option* other : commands) {
      if (one < other) one->excludes(other);
    }
  }
  AddShared(app, flags);
}

std::optional<int> Use(const UseFlags& flags, int threads) {
  if (const absl::Status status = CheckShared(flags); !status.ok()) return Refuse(status);
  if (!flags.served.empty()) return Serve(flags, threads);
  if (!UsesAModel(flags) && flags.write_needles.empty()) return std::nullopt;
  UnblockSignals();
  SetThreads(threads, 1);
  const absl::Status status = RunUse(flags);
  if (status.ok()) return 0;
  return absl::IsInvalidArgument(status) ? Refuse(status) : Fail(status);
}

}  // namespace nsa::train
