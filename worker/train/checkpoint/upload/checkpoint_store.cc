#include "worker/train/checkpoint/upload/checkpoint_store.h"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/clean_text.h"
#include "common/base/fd.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/s3/access.h"
#include "nlohmann/json.hpp"
#include "worker/train/checkpoint/durable_file.h"

namespace nsa::train {
namespace {

constexpr char kStateFile[] = "state.json";
constexpr char kUploadFile[] = "upload.json";
constexpr size_t kMostObjects = 50'000;
constexpr int64_t kPieceBytes = 16 << 20;  // of a download

// The step of "step-00005000"; -1 for any other name.
int64_t StepOfName(const std::string& name) {
  int64_t step = -1;
  const bool number = name.starts_with("step-") && absl::SimpleAtoi(name.substr(5), &step);
  return number && CheckpointName(step) == name ? step : -1;
}

// A manifest in the store may have been written by anybody who may write there.
absl::StatusOr<v1::CheckpointState> Parsed(const std::string& text, const std::string& where) {
  NSA_ASSIGN_OR_RETURN(v1::CheckpointState state,
                       ParseCheckpointState(text, where + "/state.json"));
  for (const v1::CheckpointFile& file : state.files()) {
    const std::string& name = file.name();
    const bool plain = !name.empty() && name.size() <= 255 && name.front() != '.' &&
                       name.find('/') == std::string::npos && name != kStateFile;
    if (plain && file.bytes() >= 0) continue;
    return absl::DataLossError(absl::StrCat(where, "/state.json: names a file ",
                                            CleanLine(CutText(name, 80)),
                                            ", which no checkpoint has"));
  }
  return state;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(
    const std::string& url, const std::string& job_id, absl::Duration patience,
    const std::atomic<bool>* cancelled) {
  NSA_ASSIGN_OR_RETURN(S3Path folder, ParseS3Url(url, /*folder=*/true));
  if (!job_id.empty()) absl::StrAppend(&folder.key, "/", job_id);
  NSA_ASSIGN_OR_RETURN(S3Access access, S3AccessFromEnvironment());
  return std::unique_ptr<CheckpointStore>(new CheckpointStore(
      std::move(folder), {.access = std::move(access), .patience = patience}, cancelled));
}

std::string CheckpointStore::NameOf(int64_t step) const {
  return absl::StrCat(S3Name(folder_), "/", CheckpointName(step));
}

S3Path CheckpointStore::PathOf(int64_t step, const std::string& file) const {
  return {.bucket = folder_.bucket,
          .key = absl::StrCat(folder_.key, "/", CheckpointName(step), "/", file)};
}

absl::StatusOr<std::vector<StoredCheckpoint>> CheckpointStore::List() {
  const S3Path prefix = {.bucket = folder_.bucket, .key = folder_.key + "/step-"};
  NSA_ASSIGN_OR_RETURN(const std::vector<S3Object> objects, s3_.List(prefix, kMostObjects));
  std::map<int64_t, StoredCheckpoint> found;
  for (const S3Object& object : objects) {
    const std::vector<std::string> parts =
        absl::StrSplit(object.key.substr(folder_.key.size() + 1), absl::MaxSplits('/', 1));
    const int64_t step = StepOfName(parts.front());
    if (parts.size() != 2 || step < 0) continue;
    found[step].step = step;
    found[step].files.insert(parts.back());
  }
  std::vector<StoredCheckpoint> all;
  for (auto& [step, checkpoint] : found) {
    checkpoint.complete = checkpoint.files.contains(kStateFile);
    all.push_back(std::move(checkpoint));
  }
  return all;
}

absl::StatusOr<v1::CheckpointState> CheckpointStore::State(int64_t step) {
  NSA_ASSIGN_OR_RETURN(const std::string text,
                       s3_.Get(PathOf(step, kStateFile), limits::kManifestBytes));
  return Parsed(text, NameOf(step));
}

// What upload.json says about an upload of this very content; ends any other one.
absl::StatusOr<S3Upload> CheckpointStore::Interrupted(const Folder& checkpoints, const S3Path& path,
                                                      const std::string& hash) {
  S3Upload upload;
  const auto json = nlohmann::json::parse(checkpoints.Read(kUploadFile).value_or(""), nullptr,
                                          /*allow_exceptions=*/false);
  if (!json.is_object()) return upload;
  const auto text = [&](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  };
  upload.id = text("upload_id");
  if (upload.id.empty()) return upload;
  if (text("bucket") != path.bucket || text("key") != path.key || text("xxh3_128") != hash) {
    const S3Path other = {.bucket = text("bucket"), .key = text("key")};
    const bool own =
        other.bucket == folder_.bucket && other.key.starts_with(folder_.key + "/step-");
    if (own) s3_.Abort(other, upload.id).IgnoreError();  // it only takes space there
    return S3Upload();
  }
  if (json.contains("etags") && json["etags"].is_array()) {
    for (const auto& etag : json["etags"]) {
      if (etag.is_string()) upload.etags.push_back(etag.get<std::string>());
    }
  }
  return upload;
}

absl::Status CheckpointStore::UploadFile(const Folder& checkpoints, int64_t step,
                                         const v1::CheckpointFile& file,
                                         const std::function<void()>& progress) {
  const S3Path path = PathOf(step, file.name());
  NSA_ASSIGN_OR_RETURN(const Folder folder, checkpoints.MakeFolder(CheckpointName(step)));
  NSA_ASSIGN_OR_RETURN(const Fd fd, folder.Open(file.name(), O_RDONLY));
  NSA_ASSIGN_OR_RETURN(S3Upload upload, Interrupted(checkpoints, path, file.xxh3_128()));
  const auto keep = [&](const S3Upload& now) {
    progress();
    const nlohmann::json json = {{"bucket", path.bucket},
                                 {"key", path.key},
                                 {"xxh3_128", file.xxh3_128()},
                                 {"upload_id", now.id},
                                 {"etags", now.etags}};
    // The store may answer with any bytes.
    const std::string text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
    return checkpoints.WriteAtomically(kUploadFile, text + "\n");
  };
  NSA_RETURN_IF_ERROR(
      s3_.PutParts(path, file.bytes(), PiecesOf(fd.get(), file.name()), std::move(upload), keep));
  progress();
  return checkpoints.RemoveAll(kUploadFile);
}

absl::StatusOr<int64_t> CheckpointStore::Upload(const Folder& checkpoints, int64_t step,
                                                const std::function<void()>& progress) {
  const std::string name = CheckpointName(step);
  if (!checkpoints.Has(name)) return absl::NotFoundError(name + " is gone");
  NSA_ASSIGN_OR_RETURN(const Folder folder, checkpoints.MakeFolder(name));
  NSA_ASSIGN_OR_RETURN(const std::string text, folder.Read(kStateFile));
  NSA_ASSIGN_OR_RETURN(const v1::CheckpointState state, Parsed(text, name));
  // A checkpoint of an earlier run to this step is not complete any more.
  NSA_RETURN_IF_ERROR(s3_.Delete(PathOf(step, kStateFile)));
  int64_t bytes = std::ssize(text);
  for (const v1::CheckpointFile& file : state.files()) {
    NSA_RETURN_IF_ERROR(UploadFile(checkpoints, step, file, progress));
    bytes += file.bytes();
  }
  if (folder.Has(kPinnedFile)) NSA_RETURN_IF_ERROR(SetPinned(step, true));
  NSA_RETURN_IF_ERROR(s3_.Put(PathOf(step, kStateFile), text));
  progress();
  return bytes;
}

absl::Status CheckpointStore::DownloadFile(int64_t step, const v1::CheckpointFile& file,
                                           const Folder& to) {
  NSA_ASSIGN_OR_RETURN(const std::unique_ptr<DurableFile> written,
                       DurableFile::Create(to, file.name()));
  for (int64_t at = 0; at < file.bytes(); at += kPieceBytes) {
    NSA_ASSIGN_OR_RETURN(
        const std::string piece,
        s3_.Read(PathOf(step, file.name()), at, std::min(at + kPieceBytes, file.bytes())));
    NSA_RETURN_IF_ERROR(written->Append(piece));
  }
  NSA_ASSIGN_OR_RETURN(const v1::CheckpointFile has, written->Finish());
  if (has.xxh3_128() == file.xxh3_128()) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("%s/%s: hash %s (state.json says %s)", NameOf(step),
                                             file.name(), has.xxh3_128(), file.xxh3_128()));
}

absl::Status CheckpointStore::Download(const StoredCheckpoint& checkpoint,
                                       const Folder& checkpoints) {
  const std::string name = CheckpointName(checkpoint.step);
  const std::string temporary = name + ".tmp-download";
  NSA_RETURN_IF_ERROR(checkpoints.RemoveAll(temporary));
  NSA_ASSIGN_OR_RETURN(const std::string text,
                       s3_.Get(PathOf(checkpoint.step, kStateFile), limits::kManifestBytes));
  NSA_ASSIGN_OR_RETURN(const v1::CheckpointState state, Parsed(text, NameOf(checkpoint.step)));
  absl::Status status = [&]() -> absl::Status {
    NSA_ASSIGN_OR_RETURN(const Folder folder, checkpoints.MakeFolder(temporary));
    for (const v1::CheckpointFile& file : state.files()) {
      NSA_RETURN_IF_ERROR(DownloadFile(checkpoint.step, file, folder));
    }
    if (checkpoint.files.contains(kPinnedFile)) {
      NSA_RETURN_IF_ERROR(folder.WriteAtomically(kPinnedFile, ""));
    }
    NSA_RETURN_IF_ERROR(folder.WriteAtomically(kStateFile, text));
    NSA_RETURN_IF_ERROR(folder.Sync());
    NSA_RETURN_IF_ERROR(checkpoints.Publish(temporary, name));
    return checkpoints.PointLink("latest.ckpt", name);
  }();
  if (!status.ok()) checkpoints.RemoveAll(temporary).IgnoreError();
  return status;
}

absl::Status CheckpointStore::Remove(const StoredCheckpoint& checkpoint) {
  NSA_RETURN_IF_ERROR(s3_.Delete(PathOf(checkpoint.step, kStateFile)));
  for (const std::string& file : checkpoint.files) {
    NSA_RETURN_IF_ERROR(s3_.Delete(PathOf(checkpoint.step, file)));
  }
  return absl::OkStatus();
}

absl::Status CheckpointStore::SetPinned(int64_t step, bool pinned) {
  const S3Path path = PathOf(step, kPinnedFile);
  return pinned ? s3_.Put(path, "") : s3_.Delete(path);
}

}  // namespace nsa::train
