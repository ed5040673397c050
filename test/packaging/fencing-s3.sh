#!/bin/sh
# SPDX-License-Identifier: MIT
#
# fencing-s3.sh - what doc/recipes/fencing.md does with an object store ($HF_TEST_S3): a
# late writer changes nothing, whenever it comes.
. "$(dirname "$0")/../cli/lib.sh"
top=$(cd "$(dirname "$0")/../.." && pwd)
S3_BUCKET=$HF_TEST_S3
export S3_BUCKET

# curl that can do something before it writes, and can lose the conditions.
mkdir "$tmp/bin"
cat >"$tmp/bin/curl" <<END
#!/bin/bash
args=()
for arg; do
    case \$arg in
    -T) [ ! -e "$tmp/before" ] || { mv "$tmp/before" "$tmp/now" && sh -u "$tmp/now"; } ;;
    If-*) [ ! -e "$tmp/deaf" ] || arg=X-Nothing:1 ;;
    esac
    args+=("\$arg")
done
exec $(command -v curl) "\${args[@]}"
END
chmod 755 "$tmp/bin/curl"
PATH=$tmp/bin:$PATH

awk '/^```sh s3$/ { inside = 1; next } /^```/ { inside = 0 } inside' \
    "$top/doc/recipes/fencing.md" >"$tmp/page.sh"
. "$tmp/page.sh"

# write FENCE TEXT [FUNCTION]: its status.
write() {
    echo "$2" >"$tmp/text"
    (HOLDFAST_FENCE=$1 && export HOLDFAST_FENCE && "${3-put}" object "$tmp/text")
    echo $?
}
# before FENCE TEXT: somebody writes that just before the next write.
before() {
    echo "$2" >"$tmp/other"
    echo ". '$tmp/page.sh'; HOLDFAST_FENCE=$1; put object '$tmp/other'" >"$tmp/before"
}
there() { s3 -f "$S3_BUCKET/object" | paste -sd' '; }

fence_now() { "$HOLDFAST" run -q object -- sh -c 'echo $HOLDFAST_FENCE'; }
old=$(fence_now)
new=$(fence_now)
[ "$new" -gt "$old" ]
ok 'fences rise'

is 'requests are signed, and signatures are checked' '200 403' "$(s3 -o /dev/null -w '%{http_code}' "$S3_BUCKET") $(
    AWS_SECRET_ACCESS_KEY=wrong && s3 -o /dev/null -w '%{http_code}' "$S3_BUCKET")"
knows_conditions
ok 'the store knows conditions'
touch "$tmp/deaf"
! knows_conditions
ok 'one that does not is found out'
rm "$tmp/deaf"

is 'a holder writes the first object' 0 "$(write "$old" one)"
is 'the same holder writes again' 0 "$(write "$old" two)"
is 'a later holder writes' 0 "$(write "$new" three)"
is 'a late writer is told to stop' 1 "$(write "$old" late)"
is 'what the later holder wrote is there' "fence $new three" "$(there)"

# Between the look and the write of the late writer.
s3 -f -X DELETE "$S3_BUCKET/object"
before "$new" three
is 'a late writer that found nothing is told to stop' 1 "$(write "$old" late)"
is 'what the later holder created is there' "fence $new three" "$(there)"
s3 -f -X DELETE "$S3_BUCKET/object"
is 'a holder writes' 0 "$(write "$old" same)"
before "$new" same
is 'a late writer is told to stop if the text is as it was' 1 "$(write "$old" late)"
is 'the text is still there' "fence $new same" "$(there)"
before "$new" between
is 'the later holder writes whatever comes between' 0 "$(write "$new" four)"
is 'and has written' "fence $new four" "$(there)"
is 'a bucket that is not there is a failure' 2 "$(S3_BUCKET=${S3_BUCKET%/*}/none && write "$new" five)"
is 'so is a store that is not there' 2 "$(S3_BUCKET=http://127.0.0.1:1/none && write "$new" five)"

# Names with the fence: conditions are not needed.
touch "$tmp/deaf"
is 'a holder keeps' 0 "$(write "$old" one keep)"
is 'it is the newest' one "$(newest object)"
is 'a later holder keeps' 0 "$(write "$new" two keep)"
is 'a late writer keeps, too' 0 "$(write "$old" late keep)"
is 'readers get that of the later holder' two "$(newest object)"
is 'so they do when digits are added' '0 much later' \
    "$(write "${new}0" 'much later' keep) $(newest object)"
finish
