// YAML into any of our messages, strictly. The loader walks the message's descriptor, so the schema
// is the .proto file and nothing else.
//
// Refused, each with its place: unknown keys (with a did-you-mean), duplicate keys, anchors,
// aliases, tags, merge keys, second documents, non-finite numbers, numbers that do not fit,
// octal-looking numbers, more than 1 MiB, more than 32 levels, a BOM other than UTF-8's, NUL bytes,
// invalid UTF-8. Enum values are written in lower case without their prefix. A scalar where a list
// is expected is a list of one. A map field accepts a map, or a list of one-key maps.
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

// A place in a file, 1-based; line 0 when unknown.
struct SourcePlace {
  int line = 0;
  int column = 0;
};

// Field path ("train.save_every", "data.path[1]") to its place.
using SourceMap = std::map<std::string, SourcePlace, std::less<>>;

// A key of the Python system that means nothing here any more, and why.
struct LegacyKey {
  std::string field;  // "runtime.use_flash"
  SourcePlace place;
  std::string why;
};

struct LoadResult {
  SourceMap places;
  std::vector<LegacyKey> legacy;  // only when loading a JobSpec
};

// Parses `text` into `message`, which is cleared first. `file` names the text in errors. On error:
// InvalidArgument whose message has one line a mistake, `file:line:column: field: what; fix`, at
// most 20 of them and then "and N more".
absl::StatusOr<LoadResult> LoadYamlText(std::string_view text, std::string_view file,
                                        google::protobuf::Message* message);

// Reads a file ("-" is standard input) and parses it. NotFound, PermissionDenied, or as above.
absl::StatusOr<LoadResult> LoadYamlFile(const std::filesystem::path& path,
                                        google::protobuf::Message* message);

// Gives a loaded spec what its place in the world decides: a name (from the file's when absent) and
// absolute paths (relative ones are taken from `base_dir`). Idempotent.
void PlaceJob(const std::filesystem::path& file, const std::filesystem::path& base_dir,
              v1::JobSpec* spec);

// LoadYamlFile of a job. Also InvalidArgument: a file that sets nothing, which would train a model
// of all defaults, and an empty out_dir.
absl::StatusOr<LoadResult> LoadJobYaml(const std::filesystem::path& path, v1::JobSpec* spec);

// A job file: LoadJobYaml and PlaceJob.
struct JobFile {
  v1::JobSpec spec;
  LoadResult source;
};
absl::StatusOr<JobFile> LoadJobFile(const std::filesystem::path& path,
                                    const std::filesystem::path& base_dir);

// Fills in every default, so that the effective spec can be shown and stored. Idempotent. What
// depends on the machine (device: auto, precision) stays as it is; see ResolveDevice.
void ApplyDefaults(v1::JobSpec* spec);

// Decides device and precision where they are left open.
void ResolveDevice(bool has_gpu, v1::JobSpec* spec);

// A message as YAML in the spelling that the loader reads.
std::string ToYaml(const google::protobuf::Message& message);

// XXH3-128 of what a continued run may not change: model, nsa, data (without loader settings), and
// train without steps, cadences, retention and out_dir. 32 hexadecimal digits.
std::string JobHash(const v1::JobSpec& spec);

}  // namespace nsa
