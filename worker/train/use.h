// The commands of nsa-worker that do not train: score, eval, sample, needle and serve use a trained
// model, write-needles writes what needle measures, count, prepare and inspect read data, and
// fetch-model fetches a model.
#pragma once

#include <string>
#include <vector>

#include "worker/train/needle/commands.h"
#include "worker/train/score/sample.h"
#include "worker/train/score/score.h"
#include "worker/train/serve/server.h"

namespace CLI {
class App;
}  // namespace CLI

namespace nsa::train {

struct UseFlags {
  using Command = int (*)(const UseFlags&);
  Command command = nullptr;  // null: none was given
  std::string checkpoint, device = "cpu";
  int threads = 0;  // kernel threads; 0: all cores
  TextFile text;    // to score or to evaluate
  std::string output, json;
  std::string prompt_file;
  SampleOptions sampling;
  serve::ServerOptions server;
  int parent = 0;  // the process with which a server ends; 0: none
  NeedleOptions needles;
  NeedleDocuments documents;
  std::string job;
  std::string url;
  bool weights = false;
  std::vector<std::string> what;  // job files, data files, folders
};

// Declares the commands.
void AddUse(CLI::App* app, UseFlags* flags);

// Runs the command and returns its exit code. SIGTERM and SIGINT end it at once, since there is
// nothing to save; a server answers its requests first.
int Use(const UseFlags& flags);

}  // namespace nsa::train
