// What the tokens of files in the cache are known by.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "worker/train/data/prepared/set_writer.h"

namespace nsa::train {

// A SHA-256 as 64 hexadecimal digits over everything that decides the tokens: of each local file
// path, size, inode and the times of its last change (of content and of attributes, in
// nanoseconds), of each URL size, ETag and date; what the files hold, text_field and the filter;
// the tokenizer and the hash of its files, the separator, passages, and the width of a token.
//
// Nothing if a URL has neither ETag nor date, because its versions cannot be told apart. Two keys,
// one taken before reading and one after it, are equal only if no file changed in
// between. For this a call waits up to 50 ms when a file was changed just now: file systems have
// clocks that tick 100 to 1,000 times a second.
//
// NotFound or PermissionDenied, naming the file; the errors of Remote::Version().
absl::StatusOr<std::optional<std::string>> TokenKey(const SetOptions& set, int32_t separator,
                                                    ReadProgress* progress);

}  // namespace nsa::train
