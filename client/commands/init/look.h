// What `nsactl init` finds out about data: which files, of what kind, and how many tokens.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"

namespace nsa::client {

// Comments on fields of a job file, by the path of the field: "data.source".
using FieldComments = std::map<std::string, std::string, std::less<>>;

struct InitData {
  // data, and with a checkpoint its model, nsa, data.tokenizer, train.seq_len and restart.init.
  // Data paths are as they were given.
  v1::JobSpec spec;
  int64_t tokens = -1;     // about so many for training; -1: not known, as of URLs
  std::string name;        // after the first file
  std::string in_words;    // "3 files, 1.2 MB"
  bool has_model = false;  // a checkpoint says the model
  FieldComments comments;
  std::vector<std::string> notes;  // for the user
};

// `what` are files, patterns, URLs, folders of data, prepared folders, and at most one checkpoint.
// `base` has what the user has set already: data.tokenizer, data.text_field. A file that cannot be
// read, or is of a kind that no job reads, is taken as text: preflight says what is wrong with it.
// InvalidArgument, naming the word, for a URL that is none, a folder without data, an exported
// model that was not imported, and two checkpoints.
absl::StatusOr<InitData> LookAtData(const std::vector<std::string>& what, const v1::JobSpec& base);

// Sets data.stream, with its comment.
void ReadInPassing(v1::JobSpec* spec, FieldComments* comments);

}  // namespace nsa::client
