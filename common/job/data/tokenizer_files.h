// The files of the tokenizer that data.tokenizer_path names.
#pragma once

#include <filesystem>
#include <vector>

#include "nsa/v1/job.pb.h"

namespace nsa {

// Whether a tokenizer is read from files, which data.tokenizer_path names.
bool HasTokenizerFiles(v1::Tokenizer tokenizer);

// The path itself, if it ends in .json: a tokenizer.json. Else it is a folder: its tokenizer.json,
// if it has that and no vocab.json, or else its vocab.json and merges.txt, whether they exist or
// not.
std::vector<std::filesystem::path> TokenizerFilesOf(const std::filesystem::path& path);

}  // namespace nsa
