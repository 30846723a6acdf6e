#include "common/checkpoint/checkpoint_dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/clean_text.h"
#include "common/base/durable_folder.h"
#include "common/base/fd.h"
#include "common/base/job_file.h"
#include "common/base/json_shape.h"
#include "common/base/limits.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/checkpoint/content_hash.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

constexpr int32_t kFormatVersion = 1;
constexpr size_t kHashDigits = 32;
constexpr std::string_view kPrefix = "step-";
// The key of state.json's own hash, and its spelling in older versions.
constexpr std::string_view kSelfHashKeys[] = {"\"state_xxh3_128\"", "\"stateXxh3128\""};

// The step of a checkpoint name; nothing unless the name is exactly "step-" and the number, padded
// to eight digits.
std::optional<int64_t> StepOf(const std::string& name) {
  if (!absl::StartsWith(name, absl::string_view(kPrefix.data(), kPrefix.size())))
    return std::nullopt;
  int64_t step = 0;
  if (!absl::SimpleAtoi(name.substr(kPrefix.size()), &step)) return std::nullopt;
  if (step < 0 || CheckpointName(step) != name) return std::nullopt;  // "+5", "5", "00000005 "
  return step;
}

std::string HashOfText(std::string text, size_t place) {
  text.replace(place, kHashDigits, kHashDigits, '0');
  ContentHash hash;
  hash.Add(std::as_bytes(std::span(text)));
  return hash.Hex();
}

// The size is checked before anything is read: a sparse file of any size costs nothing.
absl::StatusOr<std::string> ReadText(const std::filesystem::path& path) {
  NSA_ASSIGN_OR_RETURN(const Fd fd, OpenJobFile(path, O_NOFOLLOW));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return absl::ErrnoToStatus(errno, path.filename().string());
  if (info.st_size > limits::kManifestBytes) {
    return absl::DataLossError(
        absl::StrFormat("%d bytes (at most %d)", info.st_size, limits::kManifestBytes));
  }
  std::string text;
  char buffer[16384];
  ssize_t count = 0;
  while ((count = read(fd.get(), buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(count));
    if (static_cast<int64_t>(text.size()) > limits::kManifestBytes) break;  // it grows
  }
  if (count < 0) return absl::ErrnoToStatus(errno, path.filename().string());
  return text;
}

absl::StatusOr<std::string> HashOpen(int fd, const std::function<bool()>& abandoned) {
  ContentHash hash;
  std::vector<char> buffer(size_t{1} << 20);
  ssize_t count = 0;
  while ((count = read(fd, buffer.data(), buffer.size())) != 0) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, "read");
    if (abandoned && abandoned()) return absl::CancelledError("the caller no longer waits");
    hash.Add(std::as_bytes(std::span(buffer).first(static_cast<size_t>(count))));
  }
  return hash.Hex();
}

// Describes what is wrong with a file; nothing if it is good.
std::optional<std::string> ProblemOf(const std::filesystem::path& checkpoint,
                                     const v1::CheckpointFile& file,
                                     const std::function<bool()>& abandoned) {
  if (file.name().empty() || absl::StrContains(file.name(), '/')) {
    return absl::StrFormat("state.json: file '%s' (must be a name within the folder)", file.name());
  }
  const std::filesystem::path path = checkpoint / file.name();
  const absl::StatusOr<Fd> fd = OpenJobFile(path, O_NOFOLLOW);
  if (!fd.ok()) {
    return absl::StrCat(
        file.name(), ": ",
        absl::StripPrefix(fd.status().message(), absl::StrCat(path.string(), ": ")));
  }
  struct stat info {};
  if (fstat(fd->get(), &info) != 0) return absl::StrCat(file.name(), ": ", std::strerror(errno));
  if (info.st_size != file.bytes()) {
    return absl::StrFormat("%s: %d bytes (state.json says %d)", file.name(), info.st_size,
                           file.bytes());
  }
  const absl::StatusOr<std::string> hash = HashOpen(fd->get(), abandoned);
  if (!hash.ok()) return absl::StrCat(file.name(), ": ", hash.status().message());
  if (*hash != file.xxh3_128()) {
    return absl::StrFormat("%s: hash %s (state.json says %s)", file.name(), *hash, file.xxh3_128());
  }
  return std::nullopt;
}

absl::Status CannotPin(const std::filesystem::path& file, int reason) {
  const std::string text = absl::StrCat(file.string(), ": ", std::strerror(reason), "; ");
  if (reason == ENOENT || reason == ENOTDIR) {
    return absl::NotFoundError(
        absl::StrCat(text, "the checkpoint is gone, or on another machine: pin it there"));
  }
  if (reason == EACCES || reason == EPERM) {
    return absl::PermissionDeniedError(absl::StrCat(text, "pin it as the owner of the checkpoint"));
  }
  return absl::InternalError(absl::StrCat(text, "nothing was changed"));
}

// A pin is durable: after a power loss a confirmed pin is still there, and a removed one stays
// removed.
absl::Status WritePin(const std::filesystem::path& checkpoint) {
  const std::filesystem::path file = checkpoint / kPinnedFile;
  const Fd fd(open(file.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid() || fsync(fd.get()) != 0) return CannotPin(file, errno);
  return SyncFolder(checkpoint);
}

absl::Status RemovePin(const std::filesystem::path& checkpoint) {
  const std::filesystem::path file = checkpoint / kPinnedFile;
  std::error_code error;
  const bool there = std::filesystem::is_directory(checkpoint, error);
  if (unlink(file.c_str()) != 0 && (errno != ENOENT || !there)) return CannotPin(file, errno);
  return SyncFolder(checkpoint);
}

}  // namespace

absl::Status SetPinned(const std::filesystem::path& checkpoint, bool pinned) {
  return pinned ? WritePin(checkpoint) : RemovePin(checkpoint);
}

std::string CheckpointName(int64_t step) { return absl::StrFormat("step-%08d", step); }

std::filesystem::path CheckpointsDir(const std::filesystem::path& out_dir) {
  return out_dir / "checkpoints";
}

absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::filesystem::path& out_dir) {
  return CheckpointsIn(CheckpointsDir(out_dir));
}

absl::StatusOr<std::vector<CheckpointEntry>> CheckpointsIn(const std::filesystem::path& folder) {
  std::vector<CheckpointEntry> entries;
  const absl::StatusOr<Fd> opened = OpenJobFolder(folder);
  if (absl::IsNotFound(opened.status())) return entries;
  NSA_RETURN_IF_ERROR(opened.status());
  std::error_code error;
  std::filesystem::directory_iterator it(absl::StrCat("/proc/self/fd/", opened->get()), error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    if (JobFilesAreOver()) return absl::CancelledError("the caller no longer waits");
    const std::string name = it->path().filename().string();
    const std::optional<int64_t> step = StepOf(name);
    std::error_code ignored;
    if (step && !it->is_symlink(ignored) && it->is_directory(ignored)) {
      if (entries.size() == kMostCheckpoints) {
        return absl::ResourceExhaustedError(
            absl::StrFormat("%s: more than %d checkpoints; move the older ones elsewhere",
                            folder.string(), kMostCheckpoints));
      }
      entries.push_back({*step, folder / name});
    }
  }
  if (error) return absl::ErrnoToStatus(error.value(), folder.string());
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step < b.step; });
  return entries;
}

absl::StatusOr<std::string> SerializeCheckpointState(v1::CheckpointState state) {
  state.set_format_version(kFormatVersion);
  state.set_state_xxh3_128(std::string(kHashDigits, '0'));
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;  // field names as in the job file
  std::string text;
  const auto printed = google::protobuf::util::MessageToJsonString(state, &text, options);
  if (!printed.ok()) return absl::InternalError(absl::StrCat("state.json: ", printed.ToString()));
  const size_t place = SelfHashPlace(text, kSelfHashKeys, kHashDigits);
  if (place == std::string::npos) return absl::InternalError("state.json: its own hash is missing");
  return text.replace(place, kHashDigits, HashOfText(text, place));
}

namespace {

absl::Status NoCheckpointJson(const std::string& name) {
  return absl::DataLossError(absl::StrCat(name, ": is not JSON of a checkpoint"));
}

bool IsOff(const nlohmann::json& value) { return value.is_null() || value == 0 || value == false; }

// A key of the job that this version no longer has, but earlier ones had, is dropped by the parser:
// the job would be another one. null, 0 and false stand for a key that was off.
absl::Status CheckRemovedKeys(const std::string& text, const std::string& name) {
  const google::protobuf::Descriptor& spec = *v1::JobSpec::descriptor();
  for (int s = 0; s < spec.field_count(); ++s) {
    const google::protobuf::Descriptor* section = spec.field(s)->message_type();
    for (int k = 0; section != nullptr && k < section->reserved_name_count(); ++k) {
      const std::string& key = section->reserved_name(k);
      if (!absl::StrContains(text, absl::StrCat("\"", key, "\""))) continue;
      const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (json.is_discarded()) return NoCheckpointJson(name);
      const nlohmann::json::json_pointer place(
          absl::StrCat("/spec/", spec.field(s)->name(), "/", key));
      if (!json.contains(place) || IsOff(json[place])) continue;
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: %s.%s: %s (this version no longer has this key); use the version that wrote the "
          "checkpoint",
          name, spec.field(s)->name(), key, CutText(json[place].dump(), 100)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::CheckpointState> ReadCheckpointStateFile(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  absl::StatusOr<std::string> text = ReadText(file);
  if (text.ok()) return ParseCheckpointState(*text, name);
  return absl::DataLossError(absl::StrCat(name, ": cannot be read: ", text.status().message()));
}

absl::StatusOr<v1::CheckpointState> ParseCheckpointState(const std::string& text,
                                                         const std::string& name) {
  if (!IsAsLargeAsItLooks(text)) {
    return absl::DataLossError(absl::StrCat(name, ": more values than bytes for them"));
  }
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // A newer format is detected by its version below.
  v1::CheckpointState state;
  const auto parsed = google::protobuf::util::JsonStringToMessage(text, &state, options);
  // The parser's own text quotes the file, which need not be what its name says.
  if (!parsed.ok()) return NoCheckpointJson(name);
  const size_t place = SelfHashPlace(text, kSelfHashKeys, kHashDigits);
  if (place == std::string::npos)
    return absl::DataLossError(absl::StrCat(name, ": its own hash is missing"));
  const std::string hash = HashOfText(text, place);
  if (hash != state.state_xxh3_128()) {
    return absl::DataLossError(absl::StrCat(name, ": its hash is not that of its content"));
  }
  if (state.format_version() != kFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: format_version %d (this program reads %d); use a newer nsa-worker",
                        name, state.format_version(), kFormatVersion));
  }
  NSA_RETURN_IF_ERROR(CheckRemovedKeys(text, name));
  return state;
}

absl::StatusOr<v1::CheckpointState> ReadCheckpointState(const std::filesystem::path& checkpoint) {
  return ReadCheckpointStateFile(checkpoint / "state.json");
}

absl::StatusOr<std::string> HashFile(const std::filesystem::path& path,
                                     const std::function<bool()>& abandoned) {
  NSA_ASSIGN_OR_RETURN(const Fd fd, OpenJobFile(path, O_NOFOLLOW));
  const absl::StatusOr<std::string> hash = HashOpen(fd.get(), abandoned);
  if (hash.ok() || absl::IsCancelled(hash.status())) return hash;
  return Annotate(hash.status(), path.string());
}

std::vector<std::string> VerifyCheckpoint(const std::filesystem::path& checkpoint,
                                          const std::function<bool()>& abandoned) {
  const absl::StatusOr<v1::CheckpointState> state = ReadCheckpointState(checkpoint);
  if (!state.ok()) return {std::string(state.status().message())};
  std::vector<std::string> problems;
  const std::optional<int64_t> step = StepOf(checkpoint.filename().string());
  if (step && *step != state->step()) {
    problems.push_back(
        absl::StrFormat("state.json: step %d (the folder says %d)", state->step(), *step));
  }
  const bool has_model = std::any_of(state->files().begin(), state->files().end(),
                                     [](const auto& file) { return file.name() == kModelFile; });
  if (!has_model) problems.push_back(absl::StrCat("state.json: does not list ", kModelFile));
  for (const v1::CheckpointFile& file : state->files()) {
    if (abandoned && abandoned()) {
      problems.push_back("verification was cut short: the caller no longer waits");
      break;
    }
    if (auto problem = ProblemOf(checkpoint, file, abandoned)) {
      problems.push_back(CleanLine(*problem));
    }
  }
  return problems;
}

bool ValidatesAfter(const v1::TrainSpec& train, int64_t step) {
  return train.eval_every() > 0 && (step % train.eval_every() == 0 || step == train.steps());
}

std::optional<double> ValLossAt(const v1::CheckpointState& state) {
  // Older checkpoints do not name the step of the loss, but their runs validated only by
  // schedule.
  const bool validated = state.val_step() > 0 ? state.val_step() == state.step()
                                              : ValidatesAfter(state.spec().train(), state.step());
  if (!validated || !std::isfinite(state.val_loss()) || state.val_loss() <= 0) return std::nullopt;
  return state.val_loss();
}

std::optional<std::filesystem::path> LookUpNamed(const std::filesystem::path& path) {
  std::error_code error;
  const absl::Status found = OpenJobFile(path / "state.json").status();
  if (absl::IsPermissionDenied(found)) return std::nullopt;
  if (std::filesystem::exists(path / "state.json", error)) {
    // latest.ckpt is a link, which later points to another checkpoint.
    const bool link = std::filesystem::is_symlink(path, error);
    return link ? std::filesystem::canonical(path, error) : path;
  }
  const auto entries = ListCheckpoints(path);
  if (!entries.ok() || entries->empty()) return std::nullopt;
  return entries->back().path;
}

absl::StatusOr<NewestGood> FindNamed(const std::filesystem::path& path) {
  const std::optional<std::filesystem::path> named = LookUpNamed(path);
  if (!named.has_value()) {
    return absl::NotFoundError(absl::StrCat(
        path.string(),
        ": no checkpoint (must be a folder with state.json, or an out_dir); name one"));
  }
  std::error_code error;
  if (!std::filesystem::exists(path / "state.json", error)) return FindNewestGood(path);
  return NewestGood{.found = true, .entry = {.step = 0, .path = *named}, .rejected = {}};
}

absl::StatusOr<NewestGood> FindNewestGood(const std::filesystem::path& out_dir) {
  NSA_ASSIGN_OR_RETURN(std::vector<CheckpointEntry> entries, ListCheckpoints(out_dir));
  NewestGood result;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    const std::vector<std::string> problems = VerifyCheckpoint(entry->path);
    if (problems.empty()) {
      result.found = true;
      result.entry = *entry;
      return result;
    }
    for (const std::string& problem : problems) {
      result.rejected.push_back(absl::StrCat(entry->path.filename().string(), ": ", problem));
    }
  }
  if (!entries.empty()) {
    return ReasonError(
        absl::StatusCode::kDataLoss, Reason::kNoValidCheckpoint,
        absl::StrFormat("no checkpoint in %s is valid (%s tried: %s); restore one, or start "
                        "afresh in another train.out_dir",
                        CheckpointsDir(out_dir).string(), std::to_string(entries.size()),
                        absl::StrJoin(result.rejected, "; ")));
  }
  return result;
}

bool RetentionKeeps(size_t newer, int keep, bool pinned, bool best) {
  return pinned || best || newer < static_cast<size_t>(std::max(keep, 2));
}

std::vector<CheckpointEntry> PastRetention(const std::vector<CheckpointEntry>& all, int keep,
                                           int64_t best_step) {
  std::vector<CheckpointEntry> past;
  for (size_t i = 0; i < all.size(); ++i) {
    std::error_code ignored;
    const bool pinned = std::filesystem::exists(all[i].path / kPinnedFile, ignored);
    const bool best = all[i].step == best_step;
    if (!RetentionKeeps(all.size() - 1 - i, keep, pinned, best)) past.push_back(all[i]);
  }
  return past;
}

}  // namespace nsa
