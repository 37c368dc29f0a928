#include "base/check.h"
#include "disk/read_queue.h"

#ifdef BT_URING
#include <liburing.h>

#include <cerrno>
#endif

namespace baltoro {

#ifdef BT_URING
namespace {

class UringQueue final : public ReadQueue {
 public:
  // `ring` is set up; this object takes it.
  explicit UringQueue(const io_uring& ring) : ring_(ring) {}
  ~UringQueue() override {
    while (under_way_ > 0) Wait();
    io_uring_queue_exit(&ring_);
  }

  void Submit(const ReadOp& op) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    BT_CHECK(entry != nullptr);  // no more than `depth` are under way
    io_uring_prep_read(entry, op.fd, op.out, static_cast<unsigned>(op.bytes), op.offset);
    io_uring_sqe_set_data64(entry, op.tag);
    int sent = 0;
    do sent = io_uring_submit(&ring_);
    while (sent == -EINTR || sent == -EAGAIN);
    BT_CHECK(sent == 1);
    ++under_way_;
  }

  ReadResult Wait() override {
    io_uring_cqe* entry = nullptr;
    int got = 0;
    do got = io_uring_wait_cqe(&ring_, &entry);
    while (got == -EINTR || got == -EAGAIN);
    BT_CHECK(got == 0);
    const ReadResult result{.tag = io_uring_cqe_get_data64(entry), .bytes = entry->res};
    io_uring_cqe_seen(&ring_, entry);
    --under_way_;
    return result;
  }

 private:
  io_uring ring_;
  int under_way_ = 0;
};

}  // namespace

std::unique_ptr<ReadQueue> MakeUringQueue(int depth) {
  io_uring ring{};
  if (io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0) != 0) return nullptr;
  return std::make_unique<UringQueue>(ring);
}

#else

std::unique_ptr<ReadQueue> MakeUringQueue(int) {
  return nullptr;
}

#endif

}  // namespace baltoro
