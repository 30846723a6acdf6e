#include "common/s3/upload_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/base/status.h"

namespace nsa {
namespace {

absl::Status UploadOne(const std::filesystem::path& file, const S3Path& to, S3* s3, S3* undo) {
  const Fd fd(open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, file.string());
  }
  std::string upload_id;
  const absl::Status sent = s3->PutParts(to, info.st_size, PiecesOf(fd.get(), file.string()), {},
                                         [&](const S3Upload& upload) {
                                           upload_id = upload.id;
                                           return absl::OkStatus();
                                         });
  if (!sent.ok() && !upload_id.empty()) undo->Abort(to, upload_id).IgnoreError();
  return sent;
}

}  // namespace

absl::Status UploadFolder(const std::filesystem::path& folder, const S3Path& to, S3* s3, S3* undo) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!entry.is_regular_file()) {
      return absl::FailedPreconditionError(
          absl::StrCat(entry.path().string(), ": is no file; only files are uploaded"));
    }
    files.push_back(entry.path());
  }
  if (error) return absl::ErrnoToStatus(error.value(), folder.string());
  NSA_ASSIGN_OR_RETURN(const std::vector<S3Object> there,
                       s3->List({.bucket = to.bucket, .key = to.key + "/"}, 1'000));
  if (!there.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        S3Name(to), ": has objects, ", there.front().key, " for one; take another folder"));
  }
  std::ranges::sort(files);
  std::vector<S3Path> begun;
  for (const std::filesystem::path& file : files) {
    begun.push_back(
        {.bucket = to.bucket, .key = absl::StrCat(to.key, "/", file.filename().string())});
    const absl::Status sent = UploadOne(file, begun.back(), s3, undo);
    if (sent.ok()) continue;
    // The last may be stored, too, if only the answer was lost.
    for (const S3Path& object : begun) {
      if (!undo->Delete(object).ok()) break;
    }
    return sent;
  }
  return absl::OkStatus();
}

}  // namespace nsa
