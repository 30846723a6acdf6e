// The part of nsa-worker's command line that uses a trained model instead of training one: --score,
// --eval, --sample, --needle and --serve; and --write-needles, which writes what --needle measures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/train/needle/commands.h"
#include "worker/train/score/sample.h"
#include "worker/train/serve/server.h"

namespace CLI {
class App;
}  // namespace CLI

namespace nsa::train {

struct UseFlags {
  std::vector<std::string> score;  // checkpoint, text
  std::vector<std::string> eval;   // checkpoint, text
  std::string output;
  std::string json;
  std::string sample;  // checkpoint
  std::string prompt_file;
  std::optional<int64_t> seed;  // of what is drawn
  std::optional<std::string> device;
  SampleOptions sampling;
  std::string served;  // checkpoint
  serve::ServerOptions server;
  std::string needle;  // checkpoint
  NeedleOptions needles;
  std::string write_needles;  // file
  NeedleDocuments documents;
};

// Declares the flags; at most one command may be given.
void AddUse(CLI::App* app, UseFlags* flags);

// Runs the command of the flags and returns its exit code; nothing when there is none. SIGTERM and
// SIGINT end it at once, since there is nothing to save; a server answers its requests first.
// `threads`: kernel threads; 0: all cores.
std::optional<int> Use(const UseFlags& flags, int threads);

}  // namespace nsa::train
