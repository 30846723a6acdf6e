// Sends one message to the receiver of a notice, once.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <span>

#include "common/base/clock.h"
#include "common/http/http.h"
#include "server/notice/message/message.h"
#include "server/notice/notice.h"
#include "server/notice/outcome.h"

namespace nsa::server {

// Only one thread at a time may use a Courier.
class Courier {
 public:
  // `cancelled` ends an attempt within about a second. All that is referred to must outlive it.
  Courier(const Notice& notice, Teller teller, std::filesystem::path sendmail,
          const std::atomic<bool>& cancelled, const Clock& clock);

  // How many events one message may have.
  size_t most() const { return notice_.form == NoticeForm::kJson ? 1 : kMostTogether; }

  // Sends these events, at least one and at most most(). Takes at most 30 s for a webhook and 60 s
  // for a mail.
  Outcome Send(std::span<const Telling> tellings);

 private:
  Outcome Post(const std::string& body, int64_t delivery);

  const Notice& notice_;
  const Teller teller_;
  const std::filesystem::path sendmail_;
  const std::atomic<bool>& cancelled_;
  const Clock& clock_;
  std::atomic<int64_t> bytes_ = 0;  // what libcurl counts; not used
  HttpClient client_;
};

}  // namespace nsa::server
