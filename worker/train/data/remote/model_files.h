// The files of a model on the Hugging Face Hub that an import reads (common/export/export.h).
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "worker/train/data/remote/options.h"

namespace nsa::train {

enum class ModelPart : uint8_t {
  kDescription,  // everything but the weights; refuses a repository without safetensors
  kWeights,      // those that the description in the folder names
};

// Fetches files of `url`, hf://OWNER/NAME[@REVISION], into `folder`, which has none of them, and
// returns the commit that it read; empty when the Hub does not know it. Ranges are read, repeated
// and kept in the cache as those of data (remote_file.h), so a call after an interruption fetches
// what is missing. Sizes, and the SHA-256 of large files, must be those of the Hub's list. A file
// that could not be fetched whole is removed again; others stay.
//
// The errors of Fetcher (fetch.h); InvalidArgument for a URL of another form and a wrong index;
// NotFound, naming the file, when the repository lacks one that is needed; DataLoss for a file that
// is not the listed one; ResourceExhausted.
absl::StatusOr<std::string> FetchModel(const std::string& url, const std::filesystem::path& folder,
                                       ModelPart part, RemoteOptions options);

// What nsa-worker fetch-model prints: {"commit": "…"}. Options are those of the environment.
absl::StatusOr<std::string> FetchModelCommand(const std::string& url,
                                              const std::filesystem::path& folder, ModelPart part);

}  // namespace nsa::train
