// The tokenizer of an exported model as tokenizer.json and tokenizer_config.json, which Hugging
// Face's libraries read.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/export/model_config_json.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

struct ExportedTokenizer {
  SpecialIds ids;
  int32_t turn_end = -1;  // the token that ends an answer by the chat template; −1: ids.end
  std::map<std::string, std::string> files;  // name to content; none: the tokenizer is not known
};

// The tokenizer of a job. Bytes: 256 tokens; token 0, which begins a document, is spelt
// <|separator|>, so the byte 0 in a text has no token. GPT-2: from the vocab.json and merges.txt of
// `folder`, or of data.tokenizer_path when `folder` is empty; both are among the files. A
// tokenizer.json in their place (TokenizerFilesOf()), and that of bpe, is taken as it is, with the
// chat template that is beside it (chat_template.h) and the tokens of the template. A UTF-8
// byte order mark is left out. A job on token files that names no tokenizer has only the separator
// of data.separator. NotFound or InvalidArgument, naming the file; InvalidArgument
// also when the job's tokenizer has no files, but `folder` is given.
absl::StatusOr<ExportedTokenizer> ExportTokenizer(const v1::JobSpec& spec,
                                                  const std::filesystem::path& folder);

}  // namespace nsa
