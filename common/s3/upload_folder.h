// Uploads a folder that was made for it.
#pragma once

#include <filesystem>

#include "absl/status/status.h"
#include "common/s3/s3.h"

namespace nsa {

// Stores every file of `folder` as `to`/NAME, in order of the names. FailedPrecondition, before
// anything is sent, if `to` has objects already or the folder has something that is no file. After
// an error in between, `undo`, which nobody cancels, removes what was stored, so that the same call
// can be repeated.
absl::Status UploadFolder(const std::filesystem::path& folder, const S3Path& to, S3* s3, S3* undo);

}  // namespace nsa
