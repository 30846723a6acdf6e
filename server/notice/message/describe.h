// Parts that all forms of a message share. Pure.
#pragma once

#include <string>
#include <string_view>

#include "nsa/v1/job_status.pb.h"
#include "server/notice/message/message.h"

namespace nsa::server {

// A name or a word on one line: cleaned, at most 200 bytes.
std::string ShownLine(std::string_view text);

// The address of the job's page; empty if there is none.
std::string JobLink(const v1::Job& job, const Teller& teller);

}  // namespace nsa::server
