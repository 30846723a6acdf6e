// The README.md of an exported model.
#pragma once

#include <filesystem>
#include <string>

#include "nsa/v1/checkpoint.pb.h"

namespace nsa {

struct ModelCardFacts {
  bool bf16 = false;
  bool has_tokenizer = false;
  std::string architecture;  // a plain one (ExportResult); empty: the code is in the folder
  int64_t parameters = 0;
  // The run's folder with val.csv and training.csv; empty when it is not known.
  std::filesystem::path out_dir;
};

// Markdown: how to load the model and what runs it, its losses, the curve (at most 24 rows of
// val.csv, or of training.csv without validations), its data and the whole job file.
std::string ModelCard(const v1::CheckpointState& state, const ModelCardFacts& facts);

}  // namespace nsa
