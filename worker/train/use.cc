#include "worker/train/use.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "kernels/cuda/device.h"
#include "worker/train/command_line.h"
#include "worker/train/data/prepared/commands.h"
#include "worker/train/data/remote/model_files.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/gpu/machine.h"
#include "worker/train/score/commands.h"
#include "worker/train/step/signals.h"

namespace nsa::train {
namespace {

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

int CodeOf(const absl::Status& status) {
  if (status.ok()) return 0;
  return absl::IsInvalidArgument(status) ? Refuse(status) : Fail(status);
}

int Print(const absl::StatusOr<std::string>& answer) {
  if (!answer.ok()) return Refuse(answer.status());
  std::cout << *answer << std::flush;
  return std::cout ? 0 : Refuse(absl::InternalError("standard output: cannot be written"));
}

void AnnounceServer(const serve::CompletionServer& server, const TrainedModel& trained) {
  const serve::Engine& engine = server.engine();
  absl::PrintF(
      "serving %s, step %d, at %s/v1 (context %d tokens, slots %d, caches %.1f MiB, %s); Ctrl-C "
      "ends it\n",
      server.model(), trained.state().step(), server.url(), engine.context(), engine.slots(),
      static_cast<double>(engine.bytes()) / (1 << 20), trained.device());
  std::fflush(stdout);
}

// Serves until SIGTERM or SIGINT. They end it at once while the model is loaded, and within a
// second later: requests are answered, and what is computed is left.
int Serve(const UseFlags& flags) {
  if (flags.parent != 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != flags.parent) return 0;  // it has ended already
  }
  std::atomic<bool> serving = false, asked = false;
  const SignalWatch watch([&](int) {
    if (!serving) std::_Exit(0);
    asked = true;
    asked.notify_all();
  });
  const RealClock clock;
  const auto trained = TrainedModel::Load(flags.checkpoint, BackendOf(flags));
  if (!trained.ok()) return Fail(trained.status());
  serve::ServerOptions options = flags.server;
  options.engine.context = flags.sampling.context;
  options.threads = flags.threads;
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

CLI::App* Add(CLI::App* app, UseFlags* flags, const char* name, const char* what,
              UseFlags::Command command) {
  CLI::App* const sub = app->add_subcommand(name, what);
  sub->callback([=] { flags->command = command; });
  return sub;
}

CLI::App* AddOnModel(CLI::App* app, UseFlags* flags, const char* name, const char* what,
                     UseFlags::Command command) {
  CLI::App* const sub = Add(app, flags, name, what, command);
  sub->add_option("CHECKPOINT", flags->checkpoint, "checkpoint folder, latest.ckpt or out_dir")
      ->required();
  sub->add_option("--device", flags->device,
                  "cpu or cuda, where it computes; default: cpu, also for a model of a GPU");
  sub->add_option("--threads", flags->threads, "kernel threads; 0: all cores");
  return sub;
}

void AddJson(CLI::App* sub, UseFlags* flags) {
  sub->add_option("--json", flags->json,
                  "file for the numbers as JSON, instead of text on standard output");
}

void AddContext(CLI::App* sub, UseFlags* flags) {
  sub->add_option("--context", flags->sampling.context,
                  "tokens that the model sees at most; default: the job's train.seq_len")
      ->check(CLI::Range(0, 1'048'576));
}

void AddSeed(CLI::App* sub, int64_t* seed) {
  sub->add_option("--seed", *seed, "the same seed gives the same result");
}

void AddTaskAndFiller(CLI::App* sub, UseFlags* flags, NeedleTask* task) {
  const auto name = [task](const std::string& word) {
    const absl::StatusOr<NeedleTask> named = NeedleTaskNamed(word);
    if (!named.ok()) throw CLI::ValidationError(std::string(named.status().message()));
    *task = *named;
  };
  sub->add_option_function<std::string>(
      "--task", name, "what is hidden: key, keys, values, trace or count; default: key");
  sub->add_option("--filler", flags->documents.filler,
                  "text file whose words stand around it; default: the sentences of the paper");
}

void AddScoreAndEval(CLI::App* app, UseFlags* flags) {
  CLI::App* const score =
      AddOnModel(app, flags, "score", "Write the log-probability of every byte of a text",
                 [](const UseFlags& f) {
                   return CodeOf(ScoreCommand(f.checkpoint, BackendOf(f), f.text,
                                              f.output.empty() ? "scores.jsonl" : f.output));
                 });
  score->add_option("-o,--output", flags->output, "file to write; default: scores.jsonl");
  CLI::App* const eval =
      AddOnModel(app, flags, "eval",
                 "Print loss, perplexity, bits a byte, and the loss by the number of tokens seen",
                 [](const UseFlags& f) {
                   return CodeOf(EvaluateCommand(f.checkpoint, BackendOf(f), f.text, f.json));
                 });
  AddJson(eval, flags);
  for (CLI::App* sub : {score, eval}) {
    CLI::Option* const text =
        sub->add_option("TEXT", flags->text.path,
                        sub == score ? "text, JSON lines or Parquet"
                                     : "text, JSON lines or Parquet; default: the files of "
                                       "data.val_path and data.val of its job")
            ->required(sub == score);
    sub->add_option("--text-field", flags->text.field,
                    "field of JSON lines or column of Parquet with the text; default: the job's")
        ->needs(text);
  }
}

void AddSample(CLI::App* app, UseFlags* flags) {
  SampleOptions* const to = &flags->sampling;
  CLI::App* const sub = AddOnModel(
      app, flags, "sample", "Print text that a trained model writes", [](const UseFlags& f) {
        return CodeOf(SampleCommand(f.checkpoint, BackendOf(f), f.prompt_file, f.sampling));
      });
  CLI::Option* const prompt = sub->add_option("--prompt", to->prompt, "text to continue");
  sub->add_option("--prompt-file", flags->prompt_file,
                  "file with the text to continue; - reads standard input")
      ->excludes(prompt);
  sub->add_option("--bytes", to->bytes, "bytes to write; 200 without --max-tokens");
  sub->add_option("--max-tokens", to->tokens, "tokens to write");
  sub->add_option("--temperature", to->draw.temperature, "0 takes the likeliest; default 0.8");
  sub->add_option("--top-k", to->draw.top_k, "draw from the k likeliest tokens only; 0: from all");
  sub->add_option("--top-p", to->draw.top_p,
                  "draw from the likeliest tokens that together have this probability only");
  AddContext(sub, flags);
  AddSeed(sub, &to->seed);
}

void AddServe(CLI::App* app, UseFlags* flags) {
  CLI::App* const sub = AddOnModel(
      app, flags, "serve", "Answer OpenAI's completions API for programs of this machine", Serve);
  sub->add_option("--listen", flags->server.listen,
                  "127.0.0.1:PORT or localhost:PORT; default: 127.0.0.1:8000; port 0 takes a free "
                  "one");
  sub->add_option("--parent", flags->parent,
                  "process that starts this one: end when it does, as for nsactl chat");
  sub->add_option("--slots", flags->server.engine.slots,
                  "choices of all requests that are written at the same time; default: up to 8, as "
                  "many as half of the free memory has caches for")
      ->check(CLI::Range(0, Decoder::kMostSlots));
  AddContext(sub, flags);
}

void AddNeedle(CLI::App* app, UseFlags* flags) {
  NeedleOptions* const to = &flags->needles;
  CLI::App* const sub = AddOnModel(
      app, flags, "needle", "Print how often the model finds what is hidden in its context",
      [](const UseFlags& f) {
        return CodeOf(NeedleCommand(f.checkpoint, BackendOf(f), f.documents.filler, f.needles,
                                    {.csv = f.output, .json = f.json}));
      });
  sub->add_option("--lengths", to->lengths,
                  "tokens of the context, e.g. 512,1024; default: the powers of two from 256 to "
                  "the job's train.seq_len")
      ->delimiter(',');
  sub->add_option("--depths", to->depths, "places of what is hidden; default 5");
  sub->add_option("--trials", to->trials, "documents for each length and place; default 10");
  sub->add_option("-o,--output", flags->output, "CSV file to write too");
  AddJson(sub, flags);
  AddTaskAndFiller(sub, flags, &to->task);
  AddSeed(sub, &to->seed);
}

void AddWriteNeedles(CLI::App* app, UseFlags* flags) {
  NeedleDocuments* const to = &flags->documents;
  CLI::App* const sub =
      Add(app, flags, "write-needles",
          "Write documents that hide something and ask for it, as JSON lines",
          [](const UseFlags& f) { return CodeOf(WriteNeedles(f.output, f.documents)); });
  sub->add_option("FILE", flags->output, "file to write")->required();
  sub->add_option("--documents", to->documents, "how many; default 10000");
  sub->add_option("--document-bytes", to->bytes, "bytes of each");
  AddTaskAndFiller(sub, flags, &to->task);
  AddSeed(sub, &to->seed);
}

void AddData(CLI::App* app, UseFlags* flags) {
  CLI::App* const count =
      Add(app, flags, "count", "Print documents, copies, tokens and rows of a job's data as JSON",
          [](const UseFlags& f) { return Print(CountDataCommand(f.job)); });
  CLI::App* const prepare =
      Add(app, flags, "prepare", "Write the tokens of a job's data, for training to map",
          [](const UseFlags& f) { return Print(PrepareDataCommand(f.job, f.output)); });
  for (CLI::App* sub : {count, prepare}) sub->add_option("JOB", flags->job, "job file")->required();
  prepare->add_option("FOLDER", flags->output, "folder to write")->required();
  Add(app, flags, "inspect", "Say what data contains, as JSON",
      [](const UseFlags& f) { return Print(InspectDataCommand(f.what)); })
      ->add_option("WHAT", flags->what, "job files, data files or prepared folders")
      ->required();
}

void AddFetchModel(CLI::App* app, UseFlags* flags) {
  CLI::App* const sub =
      Add(app, flags, "fetch-model",
          "Fetch what describes a model of the Hugging Face Hub, and print its commit as JSON",
          [](const UseFlags& f) {
            return Print(FetchModelCommand(
                f.url, f.output, f.weights ? ModelPart::kWeights : ModelPart::kDescription));
          });
  sub->add_option("URL", flags->url, "hf://OWNER/NAME[@REVISION]")->required();
  sub->add_option("FOLDER", flags->output, "folder to write into")->required();
  sub->add_flag("--weights", flags->weights, "its weights, after the rest");
}

}  // namespace

void AddUse(CLI::App* app, UseFlags* flags) {
  app->require_subcommand(0, 1);
  AddScoreAndEval(app, flags);
  AddSample(app, flags);
  AddServe(app, flags);
  AddNeedle(app, flags);
  AddWriteNeedles(app, flags);
  AddData(app, flags);
  AddFetchModel(app, flags);
}

int Use(const UseFlags& flags) {
  if (const absl::Status status = CheckDevice(flags.device); !status.ok()) return Refuse(status);
  if (flags.command != Serve) UnblockSignals();
  if (!flags.checkpoint.empty()) SetThreads(flags.threads, 1);
  return flags.command(flags);
}

}  // namespace nsa::train
