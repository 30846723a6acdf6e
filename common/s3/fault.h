// What the answer of an object store says went wrong. Pure.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/http/http.h"
#include "common/s3/access.h"

namespace nsa {

// The text of the first element `name` of an XML document, e.g. of Code; empty if there is none.
std::string XmlText(std::string_view document, std::string_view name);

// The error of an answer that is not what was asked for, `what: HTTP 403, AccessDenied; …`.
// Unavailable if the same request may succeed later; NotFound for an object or bucket that is not
// there; PermissionDenied for credentials; FailedPrecondition for anything else, e.g. the clock of
// this machine or the wrong region.
absl::Status S3Fault(std::string_view what, const HttpReply& reply, const S3Access& access);

}  // namespace nsa
