#include "common/job/load.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <iostream>
#include <sstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clean_text.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/why_unreadable.h"
#include "common/job/data/prepared.h"
#include "common/job/data/tokenizer_files.h"
#include "common/job/data/url.h"
#include "common/job/legacy_keys.h"
#include "common/job/out_dir_number.h"
#include "common/job/resume_from.h"
#include "common/job/text_check.h"
#include "common/job/yaml_message.h"
#include "common/job/yaml_tree.h"

namespace nsa {
namespace {

constexpr size_t kMaxErrorsShown = 20;
// Payload of the mistakes: for each `LINE COLUMN FIELD_BYTES TEXT_BYTES`, a space, field and text.
// Not a protobuf, because a field that was cut short need not be UTF-8.
constexpr char kErrorsUrl[] = "nsa.dev/load-errors";

absl::Status WithErrors(absl::Status status, const std::vector<LoadError>& errors) {
  std::string payload;
  for (const LoadError& error : errors) {
    absl::StrAppend(&payload, error.place.line, " ", error.place.column, " ", error.field.size(),
                    " ", error.text.size(), " ", error.field, error.text);
  }
  status.SetPayload(kErrorsUrl, absl::Cord(payload));
  return status;
}

absl::Status ErrorsStatus(std::string_view file, std::vector<LoadError> errors) {
  std::stable_sort(errors.begin(), errors.end(), [](const LoadError& a, const LoadError& b) {
    return std::tie(a.place.line, a.place.column) < std::tie(b.place.line, b.place.column);
  });
  std::vector<std::string> lines;
  for (const LoadError& error : errors) {
    if (lines.size() == kMaxErrorsShown) {
      lines.push_back(absl::StrFormat("and %d more", errors.size() - kMaxErrorsShown));
      break;
    }
    lines.push_back(absl::StrFormat("%s:%d:%d: %s: %s", std::string(file), error.place.line,
                                    error.place.column, error.field, error.text));
  }
  return WithErrors(absl::InvalidArgumentError(absl::StrJoin(lines, "\n")), errors);
}

// Reads slightly more than the limit at most (a UTF-8 mark and one byte), so that a huge or endless
// file costs nothing.
std::string ReadSome(std::istream& in) {
  std::string text(kMaxYamlBytes + 4, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path) {
  if (path == "-") return ReadSome(std::cin);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": is a folder; name a file in it"));
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    const int reason = errno;
    const std::string text = absl::StrFormat("%s: cannot be read: %s; check the path",
                                             path.string(), WhyUnreadable(path, reason));
    return reason == EACCES ? absl::PermissionDeniedError(text) : absl::NotFoundError(text);
  }
  return ReadSome(in);
}

// A job name from a file name: m7c_125m.yaml → m7c-125m.
std::string NameFromFile(const std::filesystem::path& path) {
  if (path == "-") return "job";
  std::string name;
  for (const char c : path.stem().string()) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) && u < 0x80) {
      name += static_cast<char>(std::tolower(u));
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  if (name.empty() || !std::isalpha(static_cast<unsigned char>(name[0]))) name = "job-" + name;
  name.resize(std::min(name.size(), limits::kJobNameBytes));
  while (name.back() == '-') name.pop_back();
  return name;
}

std::string ShownName(const std::filesystem::path& path) {
  return path == "-" ? "<stdin>" : path.string();
}

void MakeAbsolute(const std::filesystem::path& base, std::string* path) {
  if (path->empty() || IsUrl(*path)) return;
  std::filesystem::path absolute = (base / *path).lexically_normal();
  if (!absolute.has_filename() && absolute.has_relative_path()) absolute = absolute.parent_path();
  *path = absolute.string();
}

std::vector<std::string*> PathsIn(v1::DataSpec* data) {
  std::vector<std::string*> paths;
  for (std::string& path : *data->mutable_path()) paths.push_back(&path);
  for (std::string& path : *data->mutable_val_path()) paths.push_back(&path);
  for (v1::MixSource& mix : *data->mutable_mix()) {
    for (std::string& path : *mix.mutable_path()) paths.push_back(&path);
  }
  for (auto& [name, path] : *data->mutable_val()) paths.push_back(&path);
  if (data->has_tokenizer_path()) paths.push_back(data->mutable_tokenizer_path());
  return paths;
}

absl::Status MakePathsAbsolute(const std::filesystem::path& file, const std::filesystem::path& base,
                               v1::JobSpec* spec) {
  std::error_code error;
  const std::filesystem::path folder = (base / file).parent_path();
  const bool prepared = std::filesystem::exists(folder / kPreparedJob, error);
  const std::vector<std::string*> data = PathsIn(spec->mutable_data());
  for (std::string* path : data) MakeAbsolute(prepared ? folder : base, path);
  if (!spec->train().has_out_dir()) {
    spec->mutable_train()->set_out_dir(absl::StrCat("artifacts/", spec->name()));
  }
  std::vector<std::string*> others = {spec->mutable_train()->mutable_out_dir()};
  if (NamesCheckpoint(spec->restart())) {
    others.push_back(spec->mutable_restart()->mutable_resume());
  }
  if (!spec->restart().init().empty()) others.push_back(spec->mutable_restart()->mutable_init());
  for (std::string* path : others) MakeAbsolute(base, path);
  // The file is UTF-8, so what is not is the folder in which its paths start.
  others.insert(others.end(), data.begin(), data.end());
  for (const std::string* path : others) {
    if (IsUtf8(*path)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "path: ", CleanLine(*path),
        " (a job's paths must be UTF-8, and relative ones start in the current directory); change "
        "to a directory with such a name, or rename it"));
  }
  return absl::OkStatus();
}

// The default of model.vocab where only the tokenizer's file says it. Without that file it stays as
// it is, and preflight says what to do.
void SetVocab(v1::JobSpec* spec) {
  const v1::DataSpec& data = spec->data();
  const bool wanted = data.tokenizer() == v1::TOKENIZER_BPE && !data.tokenizer_path().empty();
  if (!wanted || spec->model().vocab() != 0) return;
  const auto facts =
      ReadTokenizerFacts(TokenizerFilesOf(data.tokenizer(), data.tokenizer_path()).front());
  if (facts.ok()) spec->mutable_model()->set_vocab(facts->tokens);
}

// True if no field is set, in sections neither.
bool SetsNothing(const google::protobuf::Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  return std::all_of(fields.begin(), fields.end(), [&](const auto* field) {
    const bool section = field->message_type() != nullptr && !field->is_repeated();
    return section && SetsNothing(reflection.GetMessage(message, field));
  });
}

absl::Status NothingError(const std::string& file, const LoadResult& result) {
  return absl::InvalidArgumentError(absl::StrCat(
      file, ": sets nothing (",
      result.legacy.empty()
          ? "a job file must set at least one key); see configs/jobs/"
          : "all its keys are the Python system's and have no effect here; a job file must set at "
            "least one other key); submit a file with the sections model and train"));
}

}  // namespace

absl::StatusOr<LoadResult> LoadYamlText(std::string_view text, std::string_view file,
                                        google::protobuf::Message* message) {
  std::vector<LoadError> errors;
  const YamlNode root = ParseYaml(text, &errors);
  return LoadYamlTree(root, std::move(errors), file, message);
}

absl::StatusOr<LoadResult> LoadYamlTree(const YamlNode& root, std::vector<LoadError> errors,
                                        std::string_view file, google::protobuf::Message* message) {
  message->Clear();
  LoadResult result;
  FillMessage(root, message, &result, &errors);
  if (!errors.empty()) return ErrorsStatus(file, std::move(errors));
  return result;
}

std::vector<LoadError> LoadErrorsOf(const absl::Status& status) {
  std::vector<LoadError> errors;
  const auto payload = status.GetPayload(kErrorsUrl);
  if (!payload.has_value()) return errors;
  std::istringstream in{std::string(*payload)};
  LoadError error;
  size_t field = 0;
  size_t text = 0;
  while (in >> error.place.line >> error.place.column >> field >> text && in.ignore(1)) {
    error.field.resize(field);
    error.text.resize(text);
    in.read(error.field.data(), static_cast<std::streamsize>(field));
    in.read(error.text.data(), static_cast<std::streamsize>(text));
    errors.push_back(error);
  }
  return errors;
}

absl::StatusOr<LoadResult> LoadYamlFile(const std::filesystem::path& path,
                                        google::protobuf::Message* message) {
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return LoadYamlText(text, ShownName(path), message);
}

absl::StatusOr<LoadResult> LoadJobYaml(const std::filesystem::path& path, v1::JobSpec* spec) {
  NSA_ASSIGN_OR_RETURN(LoadResult result, LoadYamlFile(path, spec));
  if (SetsNothing(*spec)) return NothingError(ShownName(path), result);
  if (spec->train().has_out_dir() && spec->train().out_dir().empty()) {
    return ErrorsStatus(
        ShownName(path),
        {{result.places["train.out_dir"], "train.out_dir",
          "\"\" (must be a folder); name one, or remove the key to use artifacts/NAME"}});
  }
  CompleteLegacyFile(ShownName(path), &result, spec);
  return result;
}

absl::Status PlaceJob(const std::filesystem::path& file, const std::filesystem::path& base_dir,
                      v1::JobSpec* spec) {
  if (spec->name().empty()) spec->set_name(NameFromFile(file));
  NSA_RETURN_IF_ERROR(MakePathsAbsolute(file, base_dir, spec));
  SetVocab(spec);
  return absl::OkStatus();
}

absl::StatusOr<JobFile> LoadJobFile(const std::filesystem::path& path,
                                    const std::filesystem::path& base_dir) {
  JobFile job;
  NSA_ASSIGN_OR_RETURN(job.source, LoadJobYaml(path, &job.spec));
  NSA_RETURN_IF_ERROR(PlaceJob(path, base_dir, &job.spec));
  FillOutDirHere(&job.spec);
  return job;
}

}  // namespace nsa
