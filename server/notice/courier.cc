#include "server/notice/courier.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/notice/mail.h"
#include "server/notice/signature.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kStall = absl::Seconds(10);
constexpr absl::Duration kTotal = absl::Seconds(30);
constexpr absl::Duration kMailLimit = absl::Seconds(60);
constexpr size_t kAnswerBytes = 4 << 10;

}  // namespace

Courier::Courier(const Notice& notice, Teller teller, std::filesystem::path sendmail,
                 const std::atomic<bool>& cancelled, const Clock& clock)
    : notice_(notice),
      teller_(std::move(teller)),
      sendmail_(std::move(sendmail)),
      cancelled_(cancelled),
      clock_(clock),
      client_(&cancelled, &bytes_) {}

Outcome Courier::Send(std::span<const Telling> tellings) {
  const int64_t delivery = tellings.front().event.sequence();
  switch (notice_.form) {
    case NoticeForm::kMail:
      return SendMail(sendmail_, MailMessage(tellings, teller_, notice_.addresses, clock_.Wall()),
                      kMailLimit, cancelled_);
    case NoticeForm::kSlack:
      return Post(SlackMessage(tellings, teller_), delivery);
    case NoticeForm::kJson:
      return Post(JsonMessage(tellings.front(), teller_), delivery);
  }
  return {.kind = Outcome::kRefused, .said = "a form that is not known"};
}

Outcome Courier::Post(const std::string& body, int64_t delivery) {
  nsa::HttpRequest request{.url = notice_.url,
                           .any_address = notice_.any_address,
                           .proxy = notice_.proxy,
                           .most_bytes = kAnswerBytes,
                           .stall = kStall,
                           .total = kTotal,
                           .headers = {"Content-Type: application/json; charset=utf-8",
                                       absl::StrCat("X-NSA-Delivery: ", delivery)}};
  if (!notice_.key.empty()) {
    request.headers.push_back(
        absl::StrCat("X-NSA-Signature: ",
                     NoticeSignature(notice_.key, absl::ToUnixSeconds(clock_.Wall()), body)));
  }
  return JudgeReply(client_.Post(request, body), notice_.url, clock_.Wall());
}

}  // namespace nsa::server
