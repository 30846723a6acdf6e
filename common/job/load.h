// Strict loader from YAML to any of our messages. It follows the message's descriptor, so the
// .proto file is the only schema.
//
// These are errors, and each error has its line and column: unknown keys (with a suggestion),
// duplicate keys, anchors, aliases, tags, merge keys, second documents, non-finite numbers, numbers
// that are out of range, numbers that look octal, more than 1 MiB, 32 levels or 100,000 values, a
// byte-order mark other than UTF-8's, NUL bytes and other control characters, invalid UTF-8. Enum
// values are written in lower case without their prefix. A scalar in the place of a list is a list
// of one. A map field accepts a map or a list of one-key maps.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

struct YamlNode;

// A place in a file, 1-based; line 0 if it is unknown.
struct SourcePlace {
  int line = 0;
  int column = 0;
};

// Field path ("train.save_every", "data.path[1]") to its place.
using SourceMap = std::map<std::string, SourcePlace, std::less<>>;

// A warning about a key of the Python system, or about a value that such a file gets here.
struct LegacyKey {
  std::string field;  // "runtime.use_flash"
  SourcePlace place;
  std::string why;  // "has no effect: …", "50000 → 25000: …", "is not set: …"
};

struct LoadResult {
  SourceMap places;
  std::vector<LegacyKey> legacy;  // only when loading a JobSpec
};

// A mistake in a file, shown as `field: what; fix`.
struct LoadError {
  SourcePlace place;
  std::string field;  // field path, or "yaml" for the text as a whole
  std::string text;   // "what; fix"
};

// Parses `text` into `message`, which is cleared first. `file` is the name of the text in errors.
// The error is InvalidArgument. Its message has one line for each mistake:
// `file:line:column: field: what; fix`; at most 20 such lines, then "and N more". LoadErrorsOf()
// gives all of them as values.
absl::StatusOr<LoadResult> LoadYamlText(std::string_view text, std::string_view file,
                                        google::protobuf::Message* message);

// The same of a tree, and of the mistakes that were found in its text.
absl::StatusOr<LoadResult> LoadYamlTree(const YamlNode& root, std::vector<LoadError> errors,
                                        std::string_view file, google::protobuf::Message* message);

// The mistakes that an error of these functions carries, in the order of their places. Empty for an
// error that is not about a place in the file, e.g. a file that cannot be read.
std::vector<LoadError> LoadErrorsOf(const absl::Status& status);

// Reads a file ("-" is standard input) and parses it. NotFound or PermissionDenied if it cannot be
// read; otherwise as above.
absl::StatusOr<LoadResult> LoadYamlFile(const std::filesystem::path& path,
                                        google::protobuf::Message* message);

// Sets the name of a loaded spec from the file name if it has none, and makes its paths absolute.
// They start at `base_dir`; in a folder of `nsactl data prepare`, which can be moved, those of
// `data` start at the folder of the file (kPreparedJob of common/job/data/prepared.h). out_dir
// becomes artifacts/NAME if it is absent. model.vocab becomes the size of the tokenizer of
// data.tokenizer: bpe if it is absent and that tokenizer's file can be read. Idempotent.
// `base_dir` is absolute. InvalidArgument if a path is then not UTF-8, which no job can hold.
absl::Status PlaceJob(const std::filesystem::path& file, const std::filesystem::path& base_dir,
                      v1::JobSpec* spec);

// LoadYamlFile for a job, and CompleteLegacyFile for a file of the Python system
// (common/job/legacy_keys.h). Also InvalidArgument if the file sets nothing (it would train a model
// with all defaults) or sets out_dir to "".
absl::StatusOr<LoadResult> LoadJobYaml(const std::filesystem::path& path, v1::JobSpec* spec);

// A loaded job file: LoadJobYaml, PlaceJob, then FillOutDirHere (out_dir_number.h).
struct JobFile {
  v1::JobSpec spec;
  LoadResult source;
};
absl::StatusOr<JobFile> LoadJobFile(const std::filesystem::path& path,
                                    const std::filesystem::path& base_dir);

// Fills in every default and removes newer keys that are off (mlp_dim, qkv_bias). Idempotent.
// Values that depend on the machine (device: auto, precision) are unchanged; see ResolveDevice.
void ApplyDefaults(v1::JobSpec* spec);

// Sets the device if it is auto or absent (cuda with a GPU, otherwise cpu), the precision if it is
// absent (bf16 on cuda, fp32 on cpu), and on cuda what is absent of runtime.merge_micro_batches
// (common/estimate/passes.h) and, where runtime.shard is absent too, runtime.shard_optimizer
// (common/estimate/shares.h). runtime.shard: auto is left to ResolveShard(), which needs to know
// the device's memory.
void ResolveDevice(bool has_gpu, v1::JobSpec* spec);

// A message as YAML that the loader can read.
std::string ToYaml(const google::protobuf::Message& message);
// A text in it: in quotes if it could be read as something else.
std::string YamlScalar(const std::string& text);

// The fields that a continued run must not change, with defaults filled in: model, nsa without
// audit_every, data without loader_timeout_seconds and allow_synthetic_fallback, and train without
// steps, log_every, eval_every, eval_batches, save_every, keep_checkpoints and out_dir.
v1::JobSpec HashedParts(const v1::JobSpec& spec);

// XXH3-128 of HashedParts(), as 32 hexadecimal digits.
std::string JobHash(const v1::JobSpec& spec);

}  // namespace nsa
