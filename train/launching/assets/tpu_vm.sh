#!/bin/bash
# Written by `keras-vit launch --on=tpu-vm`. Read it, change the lines marked CHANGE, then:
#     bash {{output}} run       # create, set up and train; again after each preemption; delete at the end
#     bash {{output}} create    # or one step: create, setup, train, state, delete
# The slice costs money from `create` to `delete`.
set -uo pipefail

zone=us-west4-a        # CHANGE: a zone with {{accelerator}}; gcloud compute tpus accelerator-types list --zone=ZONE
bucket=my-bucket       # CHANGE: the bucket that becomes {{mount}} on the hosts; it keeps the run directory
name={{name}}

tpu() { gcloud compute tpus "$@" --zone="$zone" --quiet; }
everywhere() { tpu tpu-vm ssh "$name" --worker=all --command="$1"; }
state() { tpu queued-resources describe "$name" --format="value(state.state)" 2>/dev/null; }

create() {
    tpu queued-resources create "$name" --node-id="$name" --accelerator-type={{accelerator}} \
        --runtime-version={{runtime}}{{spot}} || return
    until [[ $(state) == ACTIVE ]]; do
        echo "$(date +%T) $name is $(state): waiting for capacity"
        [[ $(state) != FAILED ]] || return
        sleep "${WAIT:-30}"
    done
}

# JAX trains; TensorFlow for the CPU reads the data.
setup() {
    {{copy}}
    everywhere "python3 -m venv ~/keras-vit &&
        ~/keras-vit/bin/pip install --quiet 'keras-vision-transformers[cpu,jax,data]' 'jax[tpu]' &&
        sudo mkdir -p {{mount}} && sudo chown \$USER {{mount}} && { mountpoint -q {{mount}} || gcsfuse --implicit-dirs $bucket {{mount}}; }"
}

train() {
    everywhere "$(
        cat <<'COMMAND'
export KERAS_BACKEND={{backend}}
{{command}}
COMMAND
    )"
}

delete() { tpu queued-resources delete "$name" --force; }

run() {
    local code restart
    for ((restart = 0; restart <= {{restarts}}; restart++)); do
        [[ $(state) == ACTIVE ]] || create || return
        setup && train
        code=$?
        if ((code == 0)); then
            delete
            return
        fi
        # 75: stopped with everything saved. A slice that is not active was preempted.
        if [[ $(state) != ACTIVE ]]; then
            delete
        elif ((code != 75)); then
            echo "Code $code: the training failed. The slice still exists: look at it, then bash $0 delete"
            return "$code"
        fi
        echo "Code $code: the training resumes"
    done
    echo "Started again {{restarts}} times, which is the limit of this script. The slice still exists: bash $0 delete"
    return 75
}

case ${1-} in
run | create | setup | train | state | delete) "$1" ;;
*)
    echo "usage: bash $0 run | create | setup | train | state | delete" >&2
    exit 2
    ;;
esac
